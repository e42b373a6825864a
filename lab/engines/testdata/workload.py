"""Prompts of a simulated fleet of conversations: shared beginnings, own endings."""

import random

HEX_SALT = "0123456789abcdef" * 4


class Prompt:
    """Prompt is tokens with what else decides a cache hit."""

    def __init__(self, tokens, lora=None, salt=None, embeds=None):
        self.tokens, self.lora, self.salt, self.embeds = tokens, lora, salt, embeds


class Workload:
    """Workload draws prompts. Equal content comes from every workload; only the choice depends on the seed."""

    def __init__(self, seed, loras=(None,), salts=(None,), apart=False, embeds=False):
        self.random = random.Random(seed)
        self.loras, self.salts, self.apart, self.embeds = loras, salts, apart, embeds
        self.recent = []

    def segment(self, name, low, high):
        content = random.Random(name)
        return [content.randrange(1, 120_000) for _ in range(content.randint(low, high))]

    def request(self):
        """request returns a prompt that an engine is to serve."""
        r = self.random
        lora, salt = r.choice(self.loras), r.choice(self.salts)
        if self.apart:
            # No two prompts share a page: each is a document of its own.
            tokens = self.segment(f"apart/{r.randrange(60)}", 60, 500)
        else:
            system, document = r.randrange(4), r.randrange(10)
            tokens = self.segment(f"{system}", 20, 120) + self.segment(f"{system}/{document}", 40, 300)
            for turn in range(r.randrange(4)):
                tokens += self.segment(f"{system}/{document}/{turn}/{r.randrange(2)}", 5, 90)
        embeds = None
        if self.embeds and r.random() < 0.5:
            # Embeddings in place of the tokens, or a text of the token that stands for them.
            embeds, tokens = tokens if r.random() < 0.8 else None, [0] * len(tokens)
        prompt = Prompt(tokens, lora, salt, embeds)
        self.remember(prompt)
        return prompt

    def remember(self, prompt):
        self.recent.append(Prompt(list(prompt.tokens), prompt.lora, prompt.salt, prompt.embeds))
        del self.recent[:-60]

    def question(self):
        """question returns a prompt that a router asks for: one of the last ones, often changed."""
        r = self.random
        if not self.recent or r.random() < 0.05:
            return self.request()
        known = r.choice(self.recent)
        tokens, lora, salt, embeds = list(known.tokens), known.lora, known.salt, known.embeds
        if embeds:
            if r.random() < 0.2:
                embeds = None
            elif r.random() < 0.3:
                embeds = list(embeds)
                embeds[r.randrange(len(embeds))] ^= 1
        change = r.random()
        if change < 0.25:
            tokens = tokens[: r.randint(1, len(tokens))]
        elif change < 0.45:
            # Ends near the end of a block, where look-ahead and bigrams decide.
            end = 16 * r.randint(1, max(1, len(tokens) // 16)) + r.randint(-1, 5)
            tokens = tokens[: max(1, end)]
        elif change < 0.60:
            tokens[r.randrange(len(tokens))] ^= 1
        elif change < 0.75:
            tokens += [r.randrange(1, 120_000) for _ in range(r.randint(1, 40))]
        if r.random() < 0.15:
            lora, salt = r.choice(self.loras), r.choice(self.salts)
        return Prompt(tokens, lora, salt, embeds and embeds[: len(tokens)])
