"""One engine rank in a process of its own, with the truth about its cache.

usage: engine.py OPTIONS (JSON). Commands and answers are JSON lines on standard
input and output. Every answer has "last", the last sequence number that the
publisher gave, -1 before the first, and "kept", the number of removals that
left another copy of the block.
"""

import json
import os
import signal
import sys

import standins
import workload as workloads


def publisher(options):
    """publisher opens the release's own publisher on the ports of options."""
    name = f"{options['engine']}.{'srt.disaggregation' if options['engine'] == 'sglang' else 'distributed'}.kv_events"
    module = __import__(name, fromlist=["ZmqEventPublisher"])
    return module.ZmqEventPublisher(
        options["rank"],
        endpoint=f"tcp://*:{options['port']}",
        replay_endpoint=f"tcp://*:{options['replay']}" if options.get("replay") else None,
        topic=options.get("topic", ""),
    )


class Engine:
    def __init__(self, options):
        standins.install(options["unpacked"])
        if "hash_seed" in options:
            os.environ["PYTHONHASHSEED"] = options["hash_seed"]  # vLLM reads it when a cache begins
        loras = tuple(options.get("loras") or [None])
        salts = tuple(options.get("salts") or [None])
        self.options = options
        self.workload = workloads.Workload(
            options["seed"], loras, salts, options.get("apart", False), options.get("embeds", False)
        )
        if options.get("groups"):
            import vllm_groups as module
        elif options["engine"] == "vllm":
            import vllm_cache as module
        else:
            import sglang_cache as module
        self.cache = module.Cache(options, self.workload)
        self.publisher = publisher(options)
        self.last = -1
        if options["engine"] == "sglang":
            self.publish(self.cache.take())  # a tree announces its first reset
        self.work(options.get("ahead", 0))

    def publish(self, events):
        if events:
            self.publisher.publish(self.cache.batch(events))
            self.last += 1

    def work(self, steps, die=False):
        """work serves for steps steps. With die the process kills itself at a random one of them."""
        end = self.workload.random.randrange(steps) if die else -1
        for n in range(steps):
            self.publish(self.cache.step())
            if n == end:
                os.kill(os.getpid(), signal.SIGKILL)

    def flood(self, batches):
        """flood prepares batches and then publishes them as fast as the publisher takes them."""
        ready = []
        while len(ready) < batches:
            events = self.cache.step()
            if events:
                ready.append(events)
        for events in ready:
            self.publish(events)

    def reload(self):
        """reload loads adapters again, and serves until events have told of each."""
        new = self.cache.reload()
        while new:
            events = self.cache.step()
            new -= {getattr(event, self.cache.loaded) for event in events if getattr(event, "token_ids", None)}
            self.publish(events)

    def ask(self, count):
        """ask returns questions of a router, each with the truth about it."""
        questions = [self.workload.question() for _ in range(count)]
        if self.options.get("ask_base"):
            for prompt in questions:
                prompt.lora = None
        if self.options.get("groups"):
            questions = [self.cache.asked(p) for p in questions]
        return [
            {"tokens": p.tokens, "lora": p.lora, "salt": p.salt, "embeds": p.embeds and self.cache.embeds(p), **self.judged(p)}
            for p in questions
        ]

    def judged(self, prompt):
        """judged returns the truth about a prompt: how much of it the engine takes, or which blocks it has."""
        if self.options.get("groups"):
            return {"taken": self.cache.taken(prompt), "reached": self.cache.reached(prompt), "held": self.cache.held(prompt)}
        return {"held": self.cache.truth(prompt)}

    def receive(self, questions):
        """receive takes prompts whose KV another instance sends to this one."""
        self.cache.received += [workloads.Prompt(q["tokens"], q["lora"], q["salt"]) for q in questions]

    def truth(self, questions):
        """truth answers questions of another rank."""
        prompts = [workloads.Prompt(q["tokens"], q["lora"], q["salt"]) for q in questions]
        return [{**q, **self.judged(p)} for q, p in zip(questions, prompts)]


def main():
    engine = Engine(json.loads(sys.argv[1]))
    print(json.dumps({"last": engine.last}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        answer = {}
        if command["do"] == "work":
            engine.work(command["n"], command.get("die", False))
        elif command["do"] == "flood":
            engine.flood(command["n"])
        elif command["do"] == "clear":
            engine.publish(engine.cache.clear())
        elif command["do"] == "reset":
            engine.publish(engine.cache.idle())
            engine.publish(engine.cache.clear(lower=False))
        elif command["do"] == "reload":
            engine.reload()
        elif command["do"] == "ask":
            answer["questions"] = engine.ask(command["n"])
        elif command["do"] == "receive":
            engine.receive(command["questions"])
        elif command["do"] == "truth":
            answer["questions"] = engine.truth(command["questions"])
        answer["last"], answer["kept"] = engine.last, engine.cache.kept
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
