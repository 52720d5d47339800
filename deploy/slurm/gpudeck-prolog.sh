#!/bin/sh
# Prolog: refuse a job on a node with GPUs that gpudeck would drain; Slurm then drains the node and requeues the job.
# Runs on the node as root, before the job. Takes GPUDECK_SECONDS (2) at most and fails open: if the hub hangs, is away,
# refuses, or does not know, the job starts. Settings: gpudeck.env beside this file.
# shellcheck source=/dev/null
[ ! -r "${0%/*}/gpudeck.env" ] || . "${0%/*}/gpudeck.env"
export PATH="${PATH:-/usr/bin:/bin}"
node="${SLURMD_NODENAME:-$(hostname -s)}"

verdict="$(timeout -k 1 "${GPUDECK_SECONDS:-2}" "${GPUDECK:-gpudeck}" health --host "$node" --fail-open \
  --timeout "${GPUDECK_SECONDS:-2}" --hub "${GPUDECK_HUB:-http://127.0.0.1:8042}" 2>/dev/null </dev/null)" || exit 0
# The word, not an exit code: that of a program that fails is no verdict.
case "$verdict" in drain | drain[!a-z]*) ;; *) exit 0 ;; esac
logger -t gpudeck-prolog "job ${SLURM_JOB_ID:-?} refused on $node: $(printf '%s' "${verdict#drain}" | tr '\n' ';')" 2>/dev/null
# The last lines are in the log of slurmd.
printf '%s\n' "$verdict" >&2
exit 1
