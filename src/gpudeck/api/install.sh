#!/bin/sh
# Installs the gpudeck agent of this machine as a service, from the hub that serves this file. No internet is needed.
# Run as root with the name of the host; the host's token comes on the standard input. Again: upgrades, keeps the token.
# With --uninstall: removes everything that this made. `gpudeck hosts add NAME` on the hub prints the whole line.
set -eu
umask 022
hub=@HUB@
home=/opt/gpudeck etc=/etc/gpudeck unit=/etc/systemd/system/gpudeck-agent.service link=/usr/local/bin/gpudeck
mark='# Written by install.sh of the hub: an upgrade overwrites this file.'
fail() { echo "gpudeck: $*" >&2; exit 1; }
has_systemd() { [ -d /run/systemd/system ]; }

[ "$(id -u)" = 0 ] || fail "this needs root: run the line as root, or install sudo."
[ ! -e /etc/systemd/system/gpudeck-hub.service ] || fail "a hub runs on this machine, and monitors it without an agent."
[ ! -e /usr/lib/systemd/system/gpudeck-agent.service ] || fail "the package gpudeck-agent is installed: apt upgrades and removes it."

if [ "${1-}" = --uninstall ]; then
  if has_systemd && [ -e "$unit" ]; then systemctl disable --quiet --now gpudeck-agent; fi
  name=$(sed -n 's/^  name: "\(.*\)"$/\1/p' "$etc/gpudeck.yaml" 2>/dev/null) || true
  rm -f "$unit" "$etc/agent.token" "$etc/agent.token.new"
  if [ "$(readlink "$link")" = "$home/bin/gpudeck" ]; then rm -f "$link"; fi
  if grep -qsxF "$mark" "$etc/gpudeck.yaml"; then rm -f "$etc/gpudeck.yaml"; fi
  if [ -d "$etc" ]; then rmdir --ignore-fail-on-non-empty "$etc"; fi
  rm -rf "$home" /var/lib/gpudeck-agent
  if has_systemd; then systemctl daemon-reload; fi
  if id gpudeck >/dev/null 2>&1; then userdel gpudeck; fi
  echo "The gpudeck agent is removed. On the hub, run: gpudeck hosts remove ${name:-NAME}"
  exit 0
fi
name=${1-}
[ -n "$name" ] || fail "the name of the host is missing. On the hub, gpudeck hosts add NAME prints the whole line."
if [ -t 0 ] && [ ! -s "$etc/agent.token" ]; then printf 'Token of %s: ' "$name" >&2; fi
token='' && IFS= read -r token || true
[ -n "$token" ] || [ -s "$etc/agent.token" ] || fail "no token on the standard input. On the hub, gpudeck hosts add NAME prints the whole line."

# Each line: Python, machine, SHA-256, wheel.
wheels='
@WHEELS@
'
machine=$(uname -m) python='' found=''
# The system's programs first, and as the service's user: a Python in the home of root, such as pyenv's, is of no use to it.
PATH=/usr/local/bin:/usr/bin:/bin:$PATH
as_user() { (cd / && setpriv --reuid gpudeck --regid gpudeck --init-groups "$@"); }
made=''
if ! id gpudeck >/dev/null 2>&1; then
  useradd --system --user-group --no-create-home --home-dir /var/lib/gpudeck-agent --shell /usr/sbin/nologin gpudeck
  made=1
fi
for one in python3.14 python3.13 python3.12 python3.11 python3.10 python3; do
  line=$(as_user "$one" -I -c 'import ssl, sys, venv; print("%d.%d" % sys.version_info[:2], sys.executable)' 2>/dev/null) || continue
  version=${line%% *}
  found="$found $version"
  if echo "$wheels" | grep -q "^$version $machine "; then python=${line#* }; break; fi
done
if [ -z "$python" ]; then
  has=$(echo "$wheels" | awk -v m="$machine" '$2 == m { print $1 }' | sort -uV | tr '\n' ' ')
  echo "gpudeck: the hub has the agent for Python ${has:-(none) }on $machine, but this machine has${found:- no Python}." >&2
  echo "  On the hub, this fetches the agent for other versions: gpudeck wheelhouse --machine $machine" >&2
  command -v apt-get >/dev/null && echo "  On this machine, this installs a Python: apt install python3 python3-venv" >&2
  command -v dnf >/dev/null && echo "  On this machine, this installs a Python: dnf install python3.11" >&2
  if [ -n "$made" ]; then userdel gpudeck; fi
  fail "no suitable Python (3.10 or newer). Nothing was installed."
fi

mkdir -p "$home/bin" "$etc"
rm -rf "$home/venv.new" && "$python" -I -m venv --without-pip "$home/venv.new"
echo "$wheels" | grep "^$version $machine " | "$home/venv.new/bin/python" -I -c '
import hashlib, io, sys, sysconfig, urllib.request, zipfile
for line in sys.stdin:
    _, _, wanted, name = line.split()
    try:
        body = urllib.request.urlopen(sys.argv[1] + "/install/" + name, timeout=60).read()
    except OSError as error:
        sys.exit("gpudeck: %s cannot be downloaded from %s: %s. Run the line again when the hub answers." % (name, sys.argv[1], error))
    if hashlib.sha256(body).hexdigest() != wanted:
        sys.exit("gpudeck: " + name + " does not have the SHA-256 that the hub announced. The agent was not installed.")
    zipfile.ZipFile(io.BytesIO(body)).extractall(sysconfig.get_path("purelib"))
' "$hub"
"$home/venv.new/bin/python" -I -m compileall -q "$home/venv.new/lib" >/dev/null || true
"$home/venv.new/bin/python" -I -m gpudeck --version >/dev/null || fail "the agent does not run with $python $version."
rm -rf "$home/venv" && mv "$home/venv.new" "$home/venv"
printf '#!/bin/sh\nexec %s/venv/bin/python -I -X faulthandler -m gpudeck "$@"\n' "$home" >"$home/bin/gpudeck"
chmod 755 "$home/bin/gpudeck"
# For the users of this machine: gpudeck show, gpudeck wait. A gpudeck that is there already is theirs.
if [ ! -e "$link" ]; then ln -sf "$home/bin/gpudeck" "$link"; fi

# A new token takes the place of the old one when the hub has accepted it.
file="$etc/agent.token"
if [ -n "$token" ]; then file="$etc/agent.token.new" && (umask 077 && echo "$token" >"$file"); fi
chown gpudeck:gpudeck "$file"
if [ ! -e "$etc/gpudeck.yaml" ] || grep -qsxF "$mark" "$etc/gpudeck.yaml"; then
  printf '%s\nagent:\n  hub: "%s"\n  name: "%s"\n' "$mark" "$hub" "$name" >"$etc/gpudeck.yaml"
else
  echo "gpudeck: $etc/gpudeck.yaml was not written by this script and is kept: set agent.hub and agent.name there." >&2
fi

# One report shows that the hub accepts them, before a service is started.
agent="$home/bin/gpudeck agent --config $etc/gpudeck.yaml --token-file"
# shellcheck disable=SC2086
as_user $agent "$file" --once || {
  rm -f "$etc/agent.token.new"
  fail "the hub did not accept a report: see above. Run this again when that is fixed, or with --uninstall to remove what was installed."
}
if [ -n "$token" ]; then mv "$file" "$etc/agent.token"; fi
here=$(uname -n)
if [ "${here%%.*}" != "${name%%.*}" ]; then echo "Note: this machine is called $here; the hub shows it as $name." >&2; fi
if has_systemd; then
  cat >"$unit" <<'UNIT'
@UNIT@
UNIT
  systemctl daemon-reload
  systemctl enable --quiet gpudeck-agent
  systemctl restart gpudeck-agent
  echo "$name reports to $hub. Its log: journalctl -u gpudeck-agent"
else
  echo "$name has reported to $hub once. There is no systemd here: keep this running, as the user gpudeck:"
  echo "  $agent $etc/agent.token"
fi
