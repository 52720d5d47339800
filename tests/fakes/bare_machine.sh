#!/bin/sh
# The start of a machine of bare_machines.py, as the first process of its own namespaces: makes the disk, says that it is
# ready, and once its network is there becomes systemd. Wants FOLDER, LOWER, HIDDEN, GROUP, NAME, KEY and INIT.
set -e
root=$FOLDER/root

case "${1:-}" in
"")
  mount --make-rprivate /
  mkdir -p "$FOLDER/cgroup"
  mount -t cgroup2 cgroup2 "$FOLDER/cgroup"
  mkdir -p "$FOLDER/cgroup/$GROUP"
  echo 0 >"$FOLDER/cgroup/$GROUP/cgroup.procs"
  umount "$FOLDER/cgroup"
  # What is above this group cannot be seen from here on.
  exec unshare --cgroup sh "$0" within
  ;;
within)
  mount -t overlay overlay -o "lowerdir=$LOWER,upperdir=$FOLDER/upper,workdir=$FOLDER/work" "$root"
  for hidden in $HIDDEN; do
    [ ! -d "$root$hidden" ] || { mkdir -p "$FOLDER/own$hidden" && mount --bind "$FOLDER/own$hidden" "$root$hidden"; }
  done
  mount -t tmpfs -o mode=755 tmpfs "$root/dev"
  for device in null zero full random urandom tty; do
    touch "$root/dev/$device" && mount --bind "/dev/$device" "$root/dev/$device"
  done
  mkdir "$root/dev/pts" "$root/dev/shm"
  mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
  mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
  ln -s pts/ptmx "$root/dev/ptmx"
  ln -s /proc/self/fd "$root/dev/fd"
  mount -t tmpfs -o mode=755 tmpfs "$root/run"
  mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
  mkdir -p "$root/run/sshd" "$root/root/.ssh" "$root/run/before"
  chmod 700 "$root/root"
  cp "$KEY.pub" "$root/root/.ssh/authorized_keys"
  echo "$NAME" >/proc/sys/kernel/hostname
  mount -t proc proc "$root/proc"
  # The kernel's settings are those of the machine around this one: not for changing from here.
  mount --bind "$root/proc/sys" "$root/proc/sys"
  mount -o remount,ro,bind "$root/proc/sys"
  mount -t sysfs -o ro sysfs "$root/sys"
  mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
  echo ready
  read -r _
  ip link set lo up
  cd "$root"
  pivot_root . run/before
  umount -l /run/before
  rmdir /run/before
  exec env -i container=gpudeck PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 "$INIT" </dev/null
  ;;
gone)
  # Groups outlive those who were in them.
  mkdir -p "$FOLDER/cgroup"
  mount -t cgroup2 cgroup2 "$FOLDER/cgroup"
  [ ! -d "$FOLDER/cgroup/$GROUP" ] || find "$FOLDER/cgroup/$GROUP" -depth -type d -exec rmdir {} +
  ;;
esac
