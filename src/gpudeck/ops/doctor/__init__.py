"""What is wrong on this machine, and the next step: `gpudeck doctor`.

finding     one result: ok, warn, fail or skip
machine     driver, library (NVML in a process of its own), devices, processes
connection  from this agent to its hub: token, name, port, TLS, HTTP, clock, version
hub_files   the hub's own files: settings, port, folder, database, history, certificates
running     what the running hub reports: sources, messages, problems; the connection through its proxy
checks      which of these are run here
bundle      everything in one archive for a bug report, without secrets and names

A check is a function that returns findings. It changes nothing, and nothing that it does can hang for long.
"""
