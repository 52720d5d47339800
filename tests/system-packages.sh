#!/usr/bin/env bash
# What the tests want from the system: a real browser, a C compiler for the fake driver, an sshd to log in to, ip for networks, a PostgreSQL, a Prometheus, a VictoriaMetrics, a NATS server, an HAProxy, an Alertmanager, an OpenLDAP server and a Slurm cluster. Installed where we may, else named.
set -u

# Debian 12 has no Consul, Debian 11 has one that runs anywhere: taken from the mirror that apt is set up with, checked
# by apt, unpacked where tests/fakes/consul.py looks for it.
fetch_consul() (
  kept="${XDG_CACHE_HOME:-$HOME/.cache}/gpudeck/consul"
  [ -x "$kept/usr/bin/consul" ] || command -v consul >/dev/null && return
  work="$(mktemp -d)" && trap 'rm -rf "$work"' EXIT && cd "$work" && mkdir -p lists/partial cache/archives/partial || return
  [ "$(id -u)" != 0 ] || apt-get update -qq || return
  mirror="$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | sort -u | head -n 1)"
  [ -n "$mirror" ] && echo "deb $mirror bullseye main" >sources.list || return
  apt=(apt-get -qq -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts=/dev/null -o APT::Sandbox::User=
    -o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/cache" -o Acquire::Languages=none)
  "${apt[@]}" update && "${apt[@]}" download consul && mkdir -p "$kept" && dpkg -x consul_*.deb "$kept"
)
fetch_consul >/dev/null 2>&1 || echo "The tests that need Consul are skipped: there is no package of it here"

missing=()
# The headless shell draws a page with 40 % of the CPU time of a whole browser. Not every release has a package of it.
if ! command -v chromium-headless-shell >/dev/null; then
  if [ "$(id -u)" = 0 ] && apt-cache show chromium-headless-shell >/dev/null 2>&1; then
    missing+=(chromium-headless-shell)
  else
    command -v chromium >/dev/null || command -v chromium-browser >/dev/null || missing+=(chromium)
  fi
fi
command -v sshd >/dev/null || [ -x /usr/sbin/sshd ] || missing+=(openssh-server openssh-client)
command -v ip >/dev/null || missing+=(iproute2)
command -v postgres >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || missing+=(postgresql)
command -v prometheus >/dev/null || missing+=(prometheus)
command -v victoria-metrics >/dev/null || missing+=(victoria-metrics)
command -v nats-server >/dev/null || [ -x /usr/sbin/nats-server ] || missing+=(nats-server)
command -v haproxy >/dev/null || [ -x /usr/sbin/haproxy ] || missing+=(haproxy)
command -v nginx >/dev/null || [ -x /usr/sbin/nginx ] || missing+=(nginx-light)
command -v caddy >/dev/null || missing+=(caddy)
command -v slurmctld >/dev/null || [ -x /usr/sbin/slurmctld ] || missing+=(slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge)
command -v slurmdbd >/dev/null || [ -x /usr/sbin/slurmdbd ] || missing+=(slurmdbd mariadb-server)
command -v prometheus-alertmanager >/dev/null || missing+=(prometheus-alertmanager)
command -v slapd >/dev/null || [ -x /usr/sbin/slapd ] || missing+=(slapd ldap-utils)
command -v sqlite3 >/dev/null || missing+=(sqlite3)
command -v systemd-analyze >/dev/null || missing+=(systemd)
command -v ansible-playbook >/dev/null || missing+=(ansible-core)
command -v ansible-lint >/dev/null || missing+=(ansible-lint)
command -v zsh >/dev/null || missing+=(zsh)
command -v tmux >/dev/null || missing+=(tmux)
command -v fish >/dev/null || missing+=(fish)
command -v cc >/dev/null || command -v gcc >/dev/null || missing+=(gcc libc6-dev)
[ ${#missing[@]} -eq 0 ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  export DEBIAN_FRONTEND=noninteractive
  install() { apt-get install -y -qq --no-install-recommends "$@"; }
  {
    apt-get update -qq && { install "${missing[@]}" || install "${missing[@]/chromium-headless-shell/chromium}"; }
  } >/dev/null && exit 0
fi
echo "The tests that need them are skipped; to run them all: apt install ${missing[*]}"
