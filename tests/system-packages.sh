#!/usr/bin/env bash
# What the tests want from the system: a real browser, a C compiler for the fake driver. Installed where we may, else named.
set -u
missing=()
command -v chromium >/dev/null || command -v chromium-browser >/dev/null || missing+=(chromium)
command -v cc >/dev/null || command -v gcc >/dev/null || missing+=(gcc libc6-dev)
[ ${#missing[@]} -eq 0 ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  export DEBIAN_FRONTEND=noninteractive
  { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}"; } >/dev/null && exit 0
fi
echo "The tests that need them are skipped; to run them all: apt install ${missing[*]}"
