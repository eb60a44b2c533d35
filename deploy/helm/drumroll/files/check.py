"""`helm test`: asks the API server and the operator what only a working installation answers. Standard library only."""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime

ENV = os.environ  # noqa: TID251 - this runs by itself
ACCOUNT = ENV.get("ACCOUNT", "/var/run/secrets/kubernetes.io/serviceaccount")
NAMESPACE, JOBS, LEASE, METRICS = (ENV[name] for name in ("NAMESPACE", "JOBS_NAMESPACE", "LEASE", "METRICS"))
DEADLINE = time.monotonic() + 90


def api(path, body=None):
    with open(f"{ACCOUNT}/token") as file:
        headers = {"Authorization": f"Bearer {file.read()}", "Content-Type": "application/json"}
    host = f"https://{ENV['KUBERNETES_SERVICE_HOST']}:{ENV['KUBERNETES_SERVICE_PORT']}"
    data = None if body is None else json.dumps(body).encode()
    context = ssl.create_default_context(cafile=f"{ACCOUNT}/ca.crt")
    request = urllib.request.Request(host + path, data, headers)
    with urllib.request.urlopen(request, timeout=20, context=context) as answer:
        return json.load(answer)


def an_rljob_is_accepted():
    job = {
        "apiVersion": "drumroll.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"generateName": "helm-test-"},
        "spec": {
            "model": {"path": "models/none"},
            "data": {"train": {"path": "data/none.jsonl"}, "maxPromptTokens": 64, "maxResponseTokens": 64},
            "reward": {"type": "math"},
        },
    }
    made = api(f"/apis/drumroll.dev/v1alpha1/namespaces/{JOBS}/rljobs?dryRun=All&fieldValidation=Strict", job)
    assert "rollout" in made["spec"], "the API server put no defaults into the RLJob: is the definition an old one?"


def the_lease_is_held():
    lease = api(f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{LEASE}").get("spec", {})
    assert lease.get("holderIdentity"), f"nobody holds the Lease {NAMESPACE}/{LEASE}: no operator leads"
    renewed = datetime.fromisoformat(lease["renewTime"])
    age = (datetime.now(UTC) - renewed).total_seconds()
    assert age < 60, f"{lease['holderIdentity']} holds the Lease but last renewed it {age:.0f} s ago"


def metrics_are_served():
    with urllib.request.urlopen(METRICS, timeout=20) as answer:
        text = answer.read().decode()
    assert "\ndrumroll_operator_" in text, f"{METRICS} has no series of the operator"


def passes(check):
    while True:
        try:
            check()
        except (AssertionError, OSError, ValueError) as error:
            detail = error.read().decode() if isinstance(error, urllib.error.HTTPError) else ""
            if time.monotonic() > DEADLINE:
                sys.stdout.write(f"FAILED {check.__name__}: {error} {detail}\n")
                return False
            time.sleep(2)
        else:
            sys.stdout.write(f"ok {check.__name__}\n")
            return True


CHECKS = (an_rljob_is_accepted, the_lease_is_held, metrics_are_served)
RESULTS = [passes(check) for check in CHECKS]
sys.exit(0 if all(RESULTS) else 1)
