#!/bin/sh
# EpilogSlurmctld: write what a job did with its GPUs into its AdminComment, as a Jobstats summary (JS1:...). Only an
# empty AdminComment is written.
# Runs on the controller as SlurmUser, after the job has ended. Takes GPUDECK_SECONDS (2) at most and always succeeds:
# a hub that hangs or is away must not keep a node from its next job. Settings: gpudeck.env beside this file.
if [ "${1:-}" != --bounded ]; then
  # shellcheck source=/dev/null
  [ ! -r "${0%/*}/gpudeck.env" ] || . "${0%/*}/gpudeck.env"
  export PATH="${PATH:-/usr/bin:/bin}" GPUDECK="${GPUDECK:-gpudeck}" GPUDECK_HUB="${GPUDECK_HUB:-http://127.0.0.1:8042}"
  timeout -k 1 "${GPUDECK_SECONDS:-2}" sh "$0" --bounded </dev/null >/dev/null 2>&1
  exit 0
fi

job="${SLURM_JOB_ID:-}"
case "$job" in '' | *[!0-9]*) exit 0 ;; esac
# The number of an array is also that of its last task: to sacctmgr it means all tasks.
[ -z "${SLURM_ARRAY_TASK_ID:-}" ] || job="${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"

# sacctmgr of Slurm 22.05 writes comments in lower case, and the summary is worth nothing then.
case "$(sacctmgr --version)" in "slurm 2"[0-2].* | '') exit 0 ;; esac
read_comment() { sacct -n -P -X -j "$job" -o AdminComment; }
write_comment() { sacctmgr -i modify job where "jobid=$job" set "AdminComment=\"$1\""; }

before="$(read_comment)" && [ -z "$before" ] || exit 0
summary="$("$GPUDECK" job "$job" --jobstats --hub "$GPUDECK_HUB")" || exit 0
case "$summary" in JS1:None | JS1:Short) exit 0 ;; JS1:*) ;; *) exit 0 ;; esac
write_comment "$summary"
[ "$(read_comment)" = "$summary" ] || write_comment ""
