"""What is wrong on this machine, and the next step: `gpudeck doctor`.

finding     one answer: ok, warn, fail or skip
machine     driver, library, devices, processes; probe: NVML in a process of its own
route       from this agent to its hub: token, name, port, TLS, HTTP, clock, version
premises    the hub's own files: settings, port, folder, database, history, certificates
running     what the running hub says: sources, messages, problems; the way through its proxy
examine     which of these are asked here
scrub       takes secrets and names out of text; bundle: everything in one archive for a bug report

A check is a function that returns findings. It changes nothing, and nothing that it does can hang for long.
"""
