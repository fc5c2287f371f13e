"""Constants of the kernel, under the kernel's names, sorted within each group.

Belongs here: numbers from the kernel's uapi headers that Python's os, stat and errno do not offer. Does not belong
here: what to do with them.
"""

from nvinject import leanos as os

# include/uapi/asm-generic/unistd.h; the calls from 424 on have the same number on every architecture.
NR_fsconfig = 431
NR_fsmount = 432
NR_fsopen = 430
NR_mount_setattr = 442
NR_move_mount = 429
NR_open_tree = 428
NR_openat2 = 437
NR_bpf = {"x86_64": 321, "aarch64": 280}.get(os.uname().machine, -1)
NR_renameat2 = {"x86_64": 316, "aarch64": 276}.get(os.uname().machine, -1)
NR_statx = {"x86_64": 332, "aarch64": 291}.get(os.uname().machine, -1)

# include/uapi/linux/fcntl.h
AT_EMPTY_PATH = 0x1000
AT_RECURSIVE = 0x8000

# include/uapi/linux/openat2.h
RESOLVE_IN_ROOT = 0x10
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_XDEV = 0x01

# include/uapi/linux/stat.h
STATX_MNT_ID = 0x1000

# include/uapi/linux/fs.h
RENAME_EXCHANGE = 2
RENAME_NOREPLACE = 1

# include/uapi/linux/mount.h
FSCONFIG_CMD_CREATE = 6
FSCONFIG_SET_STRING = 1
FSMOUNT_CLOEXEC = 1
FSOPEN_CLOEXEC = 1
MOUNT_ATTR_NODEV = 0x04
MOUNT_ATTR_NOEXEC = 0x08
MOUNT_ATTR_NOSUID = 0x02
MOUNT_ATTR_RDONLY = 0x01
MOVE_MOUNT_F_EMPTY_PATH = 0x04
MOVE_MOUNT_T_EMPTY_PATH = 0x40
MS_BIND = 0x1000
MS_NOATIME = 0x400
MS_NODEV = 0x04
MS_NODIRATIME = 0x800
MS_NOEXEC = 0x08
MS_NOSUID = 0x02
MS_PRIVATE = 0x40000
MS_RDONLY = 0x01
MS_REC = 0x4000
MS_RELATIME = 0x200000
MS_REMOUNT = 0x20
MS_SLAVE = 0x80000
OPEN_TREE_CLOEXEC = os.O_CLOEXEC
OPEN_TREE_CLONE = 1

# flags of umount2: include/linux/fs.h
MNT_DETACH = 2

# include/uapi/linux/sched.h
CLONE_NEWNS = 0x20000
CLONE_NEWUSER = 0x10000000

# include/uapi/linux/magic.h, and the inode number of procfs's root in fs/proc/internal.h
PROC_ROOT_INO = 1
PROC_SUPER_MAGIC = 0x9FA0

# include/uapi/linux/bpf.h
BPF_CGROUP_DEVICE = 6
BPF_DEVCG_ACC_MKNOD = 1
BPF_DEVCG_ACC_READ = 2
BPF_DEVCG_ACC_WRITE = 4
BPF_DEVCG_DEV_CHAR = 2
BPF_F_ALLOW_MULTI = 2
BPF_F_REPLACE = 4
BPF_OBJ_GET_INFO_BY_FD = 15
BPF_PROG_ATTACH = 8
BPF_PROG_GET_FD_BY_ID = 13
BPF_PROG_LOAD = 5
BPF_PROG_QUERY = 16
BPF_PROG_TYPE_CGROUP_DEVICE = 15
