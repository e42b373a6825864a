#!/usr/bin/env python3
"""A follower on libzmq: subscribes, asks for history, and says what it got.

Arguments: LIVE_ENDPOINT REPLAY_ENDPOINT FROM, then flags:
  --pause N SECONDS   stop reading the reply for so long after N batches
  --leave N           vanish after N batches of the reply
  --wait N            then wait for N live batches

Prints "ended" at the end of the reply, then one line:
  replayed COUNT FIRST LAST HOLES EMPTY live COUNT HOLES
"""

import argparse
import time

import msgpack
import zmq


def main():
    p = argparse.ArgumentParser()
    p.add_argument("live")
    p.add_argument("replay")
    p.add_argument("start", type=int)
    p.add_argument("--pause", nargs=2, type=float, default=(0, 0))
    p.add_argument("--leave", type=int, default=0)
    p.add_argument("--wait", type=int, default=0)
    a = p.parse_args()
    context = zmq.Context()
    sub = context.socket(zmq.SUB)
    sub.setsockopt(zmq.RCVHWM, 0)
    sub.subscribe(b"")
    sub.connect(a.live)
    dealer = context.socket(zmq.DEALER)
    dealer.connect(a.replay)
    dealer.send_multipart([b"", a.start.to_bytes(8, "big")])
    count, first, last, holes, empty = 0, -1, -1, 0, 0
    while True:
        frames = dealer.recv_multipart()
        seq, payload = frames[-2], frames[-1]
        if payload == b"":
            break
        n = int.from_bytes(seq[:8], "big")
        if first < 0:
            first = n
        elif n != last + 1:
            holes += 1
        if not msgpack.unpackb(payload, strict_map_key=False)[1]:
            empty += 1
        last = n
        count += 1
        if a.leave and count == a.leave:
            context.destroy(linger=0)
            return
        if count == int(a.pause[0]):
            time.sleep(a.pause[1])
    print("ended", flush=True)
    lives, live_holes = 0, 0
    while lives < a.wait:
        frames = sub.recv_multipart()
        n = int.from_bytes(frames[1][:8], "big")
        if n <= last:
            continue
        if n != last + 1:
            live_holes += 1
        last = n
        lives += 1
    print("replayed", count, first, last - lives, holes, empty, "live", lives, live_holes, flush=True)


main()
