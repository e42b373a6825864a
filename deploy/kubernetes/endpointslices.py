#!/usr/bin/env python3
"""Writes a file of sources for each ready endpoint of Kubernetes EndpointSlices.

  kubectl get endpointslices -l kubernetes.io/service-name=engines -o json |
      endpointslices.py DIR [PORT_NAME]
  endpointslices.py DIR PORT_NAME SERVICE

DIR is discovery.sources_dir of Conductor. PORT_NAME is the engine's HTTP port, "http" unless
given. With SERVICE it runs in a pod and asks the API server every two seconds, with the token
of the pod's service account, which needs "list" on endpointslices. A file that has not changed
is left alone, one whose endpoint is gone is removed, and files of other names are not touched.
"""

import json
import os
import ssl
import sys
import time
import urllib.request

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount/"


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


class KeepRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the token is for the API server alone."""

    def redirect_request(self, *_):
        return None


def ask(service):
    """Returns the EndpointSlices of a Service, from the API server."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    with open(ACCOUNT + "namespace") as f:
        namespace = f.read().strip()
    with open(ACCOUNT + "token") as f:  # the kubelet renews it
        token = f.read().strip()
    url = "https://%s:%s/apis/discovery.k8s.io/v1/namespaces/%s/endpointslices?labelSelector=kubernetes.io/service-name=%s" % (
        "[%s]" % host if ":" in host else host, port, namespace, service)
    request = urllib.request.Request(url, headers={"Authorization": "Bearer " + token})
    trusted = ssl.create_default_context(cafile=ACCOUNT + "ca.crt")
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=trusted), KeepRedirect)
    with opener.open(request, timeout=10) as answer:
        return json.load(answer)


def write(directory, wanted):
    """Lets the folder have these files."""
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


def main():
    directory, port_name = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "http"
    if len(sys.argv) <= 3:
        write(directory, dict(sources(json.load(sys.stdin), port_name)))
        return
    while True:
        try:
            write(directory, dict(sources(ask(sys.argv[3]), port_name)))
        except (OSError, ValueError) as err:  # the files stay as they are
            print("the API server: %s" % err, file=sys.stderr, flush=True)
        time.sleep(2)


if __name__ == "__main__":
    main()
