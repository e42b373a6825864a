#!/usr/bin/env python3
"""Writes a file of sources for each ready endpoint of Kubernetes EndpointSlices.

  kubectl get endpointslices -l kubernetes.io/service-name=engines -o json |
      endpointslices.py DIR [PORT_NAME]

DIR is discovery.sources_dir of Conductor. PORT_NAME is the engine's HTTP port, "http" unless
given. A file that has not changed is left alone, one whose endpoint is gone is removed, and
files of other names are not touched.
"""

import json
import os
import sys


def sources(slices, port_name):
    """Yields the name and the text of a file for each ready endpoint."""
    for item in slices["items"]:
        ports = [p["port"] for p in item.get("ports") or [] if p.get("name") == port_name]
        for endpoint in item.get("endpoints") or [] if ports else []:
            if not (endpoint.get("conditions") or {}).get("ready", True):
                continue
            address = endpoint["addresses"][0]
            host = "[%s]" % address if ":" in address else address
            pod = (endpoint.get("targetRef") or {}).get("name") or address.replace(":", "-")
            source = {"discover": "http://%s:%d" % (host, ports[0]), "instance_id": "%s:%d" % (host, ports[0])}
            yield "pod-%s.yaml" % pod, json.dumps({"sources": [source]}) + "\n"


def main():
    directory = sys.argv[1]
    wanted = dict(sources(json.load(sys.stdin), sys.argv[2] if len(sys.argv) > 2 else "http"))
    for name, text in wanted.items():
        path = os.path.join(directory, name)
        if os.path.exists(path) and open(path).read() == text:
            continue
        hidden = os.path.join(directory, "." + name)
        with open(hidden, "w") as f:
            f.write(text)
        os.replace(hidden, path)  # whole at once
    for name in os.listdir(directory):
        if name.startswith("pod-") and name.endswith(".yaml") and name not in wanted:
            os.remove(os.path.join(directory, name))


if __name__ == "__main__":
    main()
