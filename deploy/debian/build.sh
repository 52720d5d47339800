#!/usr/bin/env bash
# dist/gpudeck-agent_*.deb and dist/gpudeck-hub_*.deb, from the wheel in dist/ and the locked versions in requirements/.
# Both go into one Python environment in /opt/gpudeck: gpudeck-agent has the environment, agent and command line, and
# gpudeck-hub adds the packages that only a hub needs. Each Python finds its packages in lib/pythonX.Y, so the agent's
# .deb is for several releases of Debian and Ubuntu. The hub's packages take 200 MB for each version of Python.
#   DEB_ARCH          amd64 or arm64 (default: this machine's)
#   DEB_PYTHONS       the versions of Python for the agent, oldest first
#   DEB_HUB_PYTHONS   those for the hub (default: the version of /usr/bin/python3)
#   UNUSED            packages, separated by |, that are left out
#   DIST              the folder with the wheel, and for the packages (default: dist)
set -euo pipefail
cd "$(dirname "$0")/../.."
uv=${UV:-uv} dist=${DIST:-dist}
arch=${DEB_ARCH:-$(dpkg --print-architecture)}
own=$(/usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
read -ra pythons <<<"${DEB_PYTHONS:-3.10 3.11 3.12 3.13 3.14}"
read -ra hub_pythons <<<"${DEB_HUB_PYTHONS:-$own}"
wheel=$(echo "$dist"/gpudeck-*.whl)
version=$(basename "$wheel" | cut -d- -f2)
fail() { echo "make deb: $*" >&2; exit 2; }
case $arch in amd64) machine=x86_64 ;; arm64) machine=aarch64 ;; *) fail "DEB_ARCH is amd64 or arm64, not $arch." ;; esac
[ "${hub_pythons[0]#3.}" -ge 11 ] || fail "the hub needs Python 3.11 or newer, such as DEB_HUB_PYTHONS=3.12."

work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
agent=$work/gpudeck-agent hub=$work/gpudeck-hub
awk -v unused="^(${UNUSED:-none})==" '/^[^ ]/ { wanted = $0 !~ unused } wanted' requirements/all.txt >"$work/hub.txt"

install_packages() { # FOLDER PYTHON REQUIREMENTS
  local target=$1/opt/gpudeck/lib/python$2/site-packages
  local options=(--quiet --no-deps --target "$target" --python-version "$2" --python-platform "$machine-manylinux_2_28"
    --only-binary :all: --link-mode copy)
  "$uv" pip install "${options[@]}" --require-hashes -r "$3"
  "$uv" pip install "${options[@]}" --no-index --find-links "$dist" "gpudeck==$version"
  rm -rf "$target/bin" "$target/.lock"
}

for python in "${pythons[@]}"; do install_packages "$agent" "$python" requirements/agent.txt; done
for python in "${hub_pythons[@]}"; do
  install_packages "$hub" "$python" "$work/hub.txt"
  # The hub's package has only the files that the agent's has not. Where both have a package, its version must be one.
  (cd "$agent" && find "opt/gpudeck/lib/python$python" -type f -print0) | while IFS= read -rd '' file; do
    cmp "$agent/$file" "$hub/$file" || exit 1
    rm "$hub/$file"
  done
done
find "$hub" -type d -empty -delete

mkdir -p "$agent"/{etc/gpudeck,opt/gpudeck/bin,usr/bin,usr/lib/systemd/system/gpudeck-agent.service.d}
printf 'home = /usr/bin\ninclude-system-site-packages = false\n' >"$agent/opt/gpudeck/pyvenv.cfg"
printf '#!/opt/gpudeck/bin/python -IXfaulthandler\nfrom gpudeck.cli import main\n\nmain()\n' \
  >"$agent/opt/gpudeck/bin/gpudeck"
chmod 755 "$agent/opt/gpudeck/bin/gpudeck"
ln -s /usr/bin/python3 "$agent/opt/gpudeck/bin/python"
ln -s /opt/gpudeck/bin/gpudeck "$agent/usr/bin/gpudeck"
install -m 644 deploy/debian/gpudeck.yaml "$agent/etc/gpudeck/"
# Without a token the service is not started: `systemctl restart gpudeck-agent` once there is one.
printf '[Unit]\nConditionPathExists=/etc/gpudeck/agent.token\n' >"$agent/usr/lib/systemd/system/gpudeck-agent.service.d/package.conf"

build() { # NAME VERSION OLDEST-PYTHON NEWEST-PYTHON FURTHER-DEPENDS DESCRIPTION
  local root=$work/$1
  install -D -m 644 "deploy/systemd/$1.service" "$root/usr/lib/systemd/system/$1.service"
  mkdir -p "$root/usr/share/doc/$1"
  cat >"$root/usr/share/doc/$1/copyright" <<EOF
gpudeck is licensed under the Apache License 2.0: /usr/share/common-licenses/Apache-2.0
The Python packages in /opt/gpudeck/lib have their own licenses, in the folders whose names end in .dist-info.
EOF
  # Most files are the same for every Python.
  ! command -v hardlink >/dev/null || hardlink --quiet --ignore-time "$root/opt"
  mkdir -p "$root/DEBIAN"
  install -m 755 deploy/debian/{preinst,postinst,prerm,postrm} "$root/DEBIAN/"
  [ ! -d "$root/etc" ] || echo /etc/gpudeck/gpudeck.yaml >"$root/DEBIAN/conffiles"
  (cd "$root" && find opt usr -type f -print0 | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
  cat >"$root/DEBIAN/control" <<EOF
Package: $1
Version: $2
Architecture: $arch
Maintainer: gpudeck
Section: admin
Priority: optional
Installed-Size: $(du -sk "$root" | cut -f1)
Depends: python3 (>= $3~), python3 (<< 3.$((${4#3.} + 1))~), libc6 (>= 2.28), libstdc++6, passwd$5
Recommends: ca-certificates
Description: $6
EOF
  dpkg-deb --root-owner-group -Zzstd -z9 --build "$root" "$dist" >/dev/null
  ls -sh "$dist/$1_$2_$arch.deb"
}
rm -f "$dist"/gpudeck-*_"$arch".deb
build gpudeck-agent "$version" "${pythons[0]}" "${pythons[-1]}" "" "reports the GPUs of this machine to a gpudeck hub
 The agent as a service, and the command gpudeck."
build gpudeck-hub "$version+python${hub_pythons[-1]}" "${hub_pythons[0]}" "${hub_pythons[-1]}" ", gpudeck-agent (= $version)" \
  "monitor for fleets of GPU servers
 Collects the reports of agents, reads servers over SSH, and serves the page and the API."
