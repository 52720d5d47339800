#!/bin/sh
# MailProg: pass Slurm's mail on, with the report of `gpudeck job` below it once the job has ended.
# The report takes GPUDECK_SECONDS (2) at most. Without one the mail is sent as it is. Settings: gpudeck.env beside this
# file; GPUDECK_MAIL is the program that sends (/usr/bin/mail).
# shellcheck source=/dev/null
[ ! -r "${0%/*}/gpudeck.env" ] || . "${0%/*}/gpudeck.env"
export PATH="${PATH:-/usr/bin:/bin}"

# Slurm calls `mail -s "Slurm Job_id=7 Name=train Ended, Run time ..." user`; newer versions set SLURM_JOB_ID too.
# Of arrays: "Slurm Array Summary Job_id=7_* (7) Name=..." and "Slurm Array Task Job_id=7_3 (10) Name=...".
job="${SLURM_JOB_ID:-}"
[ -z "${SLURM_ARRAY_TASK_ID:-}" ] || job="${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"
case "$*" in *"Job_id="*) job="${*#*Job_id=}" && job="${job%%[ ,]*}" && job="${job%_\*}" ;; esac

report=
case "$*" in
*" Began"* | *" Queued"* | *" Requeued"*) ;;
*)
  case "$job" in
  '' | *[!0-9_]*) ;;
  *)
    report="$(timeout -k 1 "${GPUDECK_SECONDS:-2}" "${GPUDECK:-gpudeck}" job "$job" \
      --hub "${GPUDECK_HUB:-http://127.0.0.1:8042}" 2>/dev/null </dev/null)" || report=
    ;;
  esac
  ;;
esac

{
  cat
  [ -z "$report" ] || printf 'As of the last reading of Slurm:\n%s\n' "$report"
} | "${GPUDECK_MAIL:-/usr/bin/mail}" "$@"
exit 0
