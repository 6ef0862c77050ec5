#!/bin/busybox sh
# shellcheck shell=dash disable=SC2154 # port_* are made by eval, @NAME@ is put in when the guest is built
# First program of the guest: modules, the host's root under an overlay, the command, its status, off.
/bin/busybox --install -s /bin
export PATH=/bin
said() { read -r u _ </proc/uptime; echo "guest: $1 $u" >/dev/kmsg; }
mkdir -p /proc /sys /dev /lower /ov /new
mount -t devtmpfs dev /dev; mount -t proc proc /proc; mount -t sysfs -o nosuid,noexec,nodev sys /sys
while read -r m; do insmod "/mods/$m" || said "insmod $m failed"; done </mods/order
mount -t 9p -o ro,trans=virtio,version=9p2000.L,cache=loose,msize=512000 rootfs /lower || { said "no root"; poweroff -f; }
mount -t tmpfs -o size=80%,mode=0755 ov /ov; mkdir -p /ov/u /ov/w
mount -t overlay -o lowerdir=/lower,upperdir=/ov/u,workdir=/ov/w root /new || { said "no overlay"; poweroff -f; }
mkdir -p /dev/pts /dev/shm; mount -t devpts devpts /dev/pts; mount -t tmpfs -o mode=1777 shm /dev/shm
ln -sf /proc/self/fd /dev/fd; ln -sf /proc/self/fd/0 /dev/stdin; ln -sf /proc/self/fd/1 /dev/stdout; ln -sf /proc/self/fd/2 /dev/stderr
mount -t cgroup2 cgroup2 /sys/fs/cgroup 2>/dev/null
for p in /sys/class/virtio-ports/*; do read -r n <"$p/name"; eval "port_$n=/dev/${p##*/}"; done
mount --bind /proc /new/proc; mount --bind /dev /new/dev; mount --bind /dev/pts /new/dev/pts; mount --bind /dev/shm /new/dev/shm
mount --bind /sys /new/sys; mount --bind /sys/fs/cgroup /new/sys/fs/cgroup
mount -t tmpfs -o mode=0755 run /new/run
cp /cmd.sh /new/run/guest-command.sh
@MOUNTS@
read -r u _ </proc/uptime
booted=@EPOCH@
date -s "@$((booted + ${u%.*}))" >/dev/null
hostname rdma; ip link set lo up
said ready
chroot /new /bin/sh /run/guest-command.sh </dev/null >"$port_out" 2>"$port_err"
echo $? >"$port_rc"
sync
poweroff -f
