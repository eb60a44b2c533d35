"""The local substrate: a job's pods as processes of this machine.

It takes the pod specs of drumroll_operator.manifests and supports a stated subset of them (see `podspec`); limits,
users and isolation are not emulated.
"""
