/*
 * muster-spawn: creates the processes of one gang and takes each of them to its command.
 *
 * A supervisor starts it once per gang: muster-spawn VERSION FD. The descriptor is a memfd with a message, which says for
 * each process the steps from its creation to its command; start_steps.py has their order, program_start.py the format.
 * The program creates all processes as children of the supervisor (CLONE_PARENT), in the cgroup of the job right away
 * (CLONE_INTO_CGROUP), and exits. The kernel itself writes each pid into the message before the process runs, so that the
 * supervisor knows all of them whenever the program is killed. Each process carries out its steps: up to the gate, where
 * it waits for the supervisor, and behind it until the command is executed. One that fails writes a line that says why
 * into the `unborn` file and exits.
 *
 * There is no C library: a start touches a dozen pages, and the binary depends on nothing. All memory that a process
 * writes to between its creation and its command is its stack.
 *
 * Exit status: 0, all are created; 1, one could not be created, and the message says which and why; 125, the message or
 * the version is not understood, and nothing was created.
 */

#define VERSION "1"

typedef unsigned char u8;
typedef int i32;
typedef unsigned int u32;
typedef unsigned long u64;

/* --- the kernel ----------------------------------------------------------------------------------------------------- */

#if defined(__x86_64__)
enum {
    SYS_read = 0, SYS_write = 1, SYS_close = 3, SYS_lseek = 8, SYS_mmap = 9, SYS_rt_sigaction = 13, SYS_rt_sigprocmask = 14,
    SYS_ioctl = 16, SYS_getpid = 39, SYS_clone = 56, SYS_execve = 59, SYS_fcntl = 72, SYS_chdir = 80, SYS_umask = 95,
    SYS_setuid = 105, SYS_setgid = 106, SYS_setsid = 112, SYS_setgroups = 116, SYS_capget = 125, SYS_capset = 126,
    SYS_setpriority = 141, SYS_prctl = 157, SYS_mount = 165, SYS_sched_setaffinity = 203, SYS_exit_group = 231,
    SYS_openat = 257, SYS_mkdirat = 258, SYS_renameat = 264, SYS_unshare = 272, SYS_dup3 = 292, SYS_prlimit64 = 302,
    SYS_clone3 = 435, SYS_close_range = 436,
};
__asm__(".globl _start\n_start:\n xor %ebp, %ebp\n mov %rsp, %rdi\n and $-16, %rsp\n call begin\n hlt\n");

static long call(long number, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f)
{
    register u64 r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}
#elif defined(__aarch64__)
enum {
    SYS_dup3 = 24, SYS_fcntl = 25, SYS_ioctl = 29, SYS_mkdirat = 34, SYS_renameat = 38, SYS_mount = 40, SYS_chdir = 49,
    SYS_openat = 56, SYS_close = 57, SYS_lseek = 62, SYS_read = 63, SYS_write = 64, SYS_capget = 90, SYS_capset = 91,
    SYS_exit_group = 94, SYS_unshare = 97, SYS_sched_setaffinity = 122, SYS_rt_sigaction = 134, SYS_rt_sigprocmask = 135,
    SYS_setpriority = 140, SYS_setgid = 144, SYS_setuid = 146, SYS_setsid = 157, SYS_setgroups = 159, SYS_umask = 166, SYS_prctl = 167, SYS_getpid = 172, SYS_clone = 220,
    SYS_execve = 221, SYS_mmap = 222, SYS_prlimit64 = 261, SYS_clone3 = 435, SYS_close_range = 436,
};
__asm__(".globl _start\n_start:\n mov x29, #0\n mov x30, #0\n mov x0, sp\n bl begin\n brk #0\n");

static long call(long number, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f)
{
    register u64 x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c, x3 __asm__("x3") = d;
    register u64 x4 __asm__("x4") = e, x5 __asm__("x5") = f, x8 __asm__("x8") = (u64)number;
    __asm__ volatile("svc #0" : "+r"(x0) : "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5), "r"(x8) : "memory");
    return (long)x0;
}
#else
#error "muster-spawn knows the system calls of x86-64 and aarch64; elsewhere supervisors fork"
#endif

#define sys(name, a, b, c, d) call(SYS_##name, (u64)(a), (u64)(b), (u64)(c), (u64)(d), 0, 0)

enum { E_NOENT = 2, E_INTR = 4, E_NOTDIR = 20, E_INVAL = 22, E_NAMETOOLONG = 36, E_PROTO = 71 };
enum { O_RDONLY = 0, O_WRONLY = 01, O_RDWR = 02, O_CREAT = 0100, O_TRUNC = 01000, O_CLOEXEC = 02000000, O_PATH = 010000000 };
#if defined(__aarch64__)
enum { O_DIRECTORY = 040000 };
#else
enum { O_DIRECTORY = 0200000 };
#endif
#define AT_FDCWD (-100)
#define CLONE_PARENT 0x8000UL
#define CLONE_PARENT_SETTID 0x100000UL
#define CLONE_INTO_CGROUP 0x200000000UL
#define CLONE_NEWNS 0x20000UL
#define TIOCSCTTY 0x540EUL
enum { MS_RDONLY = 1, MS_REMOUNT = 0x20, MS_BIND = 0x1000, MS_REC = 0x4000, MS_SLAVE = 0x80000 };
enum { PR_SET_SECCOMP = 22, PR_CAPBSET_DROP = 24, PR_SET_NO_NEW_PRIVS = 38, PR_CAP_AMBIENT = 47 };
#define CAPABILITY_VERSION_3 0x20080522U

struct clone_args {
    u64 flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup;
};

static long open_at(const char *path, u32 flags) { return sys(openat, AT_FDCWD, path, flags | O_CLOEXEC, 0666); }

static void leave(int status)
{
    for (;;)
        sys(exit_group, status, 0, 0, 0);
}

/* --- the message ---------------------------------------------------------------------------------------------------- */

enum op {
    SESSION = 1, OUTPUT, STREAMS, TERMINAL, CGROUP, WRITE, GATE, LIMIT, CPUS, NICE, UMASK, USER, FOLDER, FILE_, CHDIR, EXEC,
    OWN_MOUNTS, BIND, READ_ONLY, BOUNDING_SET, NO_NEW_PRIVS, SECCOMP
};

/* Offsets count from the begin of the message, whose last byte is 0: so each one within it begins a string that ends. */
struct step {
    u32 op, cannot; /* `cannot`: why the process gives up where this fails, as JSON; 0: it goes on */
    u64 a, b, c;
    u32 data, size;
};
struct process {
    i32 pid; /* the kernel writes it */
    i32 rank;
    u32 steps, count;
};
struct message {
    u32 magic, size, count;
    i32 gate, line;
    u32 error, failed; /* errno, and the index of the process that could not be created */
    u32 outside;       /* not 0: they are not to be created in the cgroup; the errno of a kernel that refused to */
    struct process processes[];
};

#define MAGIC 0x4d535031U /* "MSP1" */
#define MAX_TEXT 3584     /* of a `cannot`; with the rest of the line less than PIPE_BUF */
#define MAX_PATH 4096

static u64 length(const char *text)
{
    u64 n = 0;
    while (text[n])
        n++;
    return n;
}

static char *data(struct message *m, const struct step *step) { return (char *)m + step->data; }

/* How many strings the data of a step is made of; 0 where it does not end one. */
static u64 strings(struct message *m, const struct step *step)
{
    u64 n = 0;
    if (!step->size || data(m, step)[step->size - 1])
        return 0;
    for (u32 i = 0; i < step->size; i++)
        n += !data(m, step)[i];
    return n;
}

static const char *next(const char *text) { return text + length(text) + 1; }

/* Whether a step is what it should be, so that its execution need not look. */
static int sound(struct message *m, const struct step *step)
{
    static const u8 needed[] = {
        [OUTPUT] = 1, [CGROUP] = 4, [WRITE] = 2, [FOLDER] = 1, [FILE_] = 3, [CHDIR] = 1, [BIND] = 2, [READ_ONLY] = 1,
    };
    u64 end_of_table = sizeof *m + (u64)m->count * sizeof(struct process); /* which the kernel writes to */
    if (step->op < SESSION || step->op > SECCOMP)
        return 0;
    if (step->cannot && (step->cannot < end_of_table || step->cannot >= m->size || length((char *)m + step->cannot) > MAX_TEXT))
        return 0;
    if (step->size && (step->data < end_of_table || step->data % 8 || (u64)step->data + step->size > m->size))
        return 0;
    if (step->op == EXEC) /* candidates, arguments, environment */
        return step->a && step->b && step->a <= step->size && step->b <= step->size && step->c <= step->size
               && strings(m, step) == step->a + step->b + step->c;
    if (step->op == USER || step->op == CPUS || step->op == BOUNDING_SET)
        return step->size % 4 == 0;
    if (step->op == SECCOMP) /* an array of struct sock_filter */
        return step->size && step->size % 8 == 0 && step->size / 8 <= 4096;
    if (step->op < sizeof needed && needed[step->op])
        return strings(m, step) == needed[step->op];
    return 1;
}

/* The most pointers that a command of the message needs; 0: the message is not sound. */
static u64 check(struct message *m, u64 size)
{
    u64 most = 0;
    if (size < sizeof *m || m->magic != MAGIC || m->size != size || ((char *)m)[size - 1] || !m->count)
        return 0;
    u64 end_of_table = sizeof *m + (u64)m->count * sizeof(struct process);
    if (m->gate < 3 || m->line < 3 || end_of_table > size)
        return 0;
    for (u32 i = 0; i < m->count; i++) {
        struct process *one = &m->processes[i];
        if (one->pid || !one->count || one->steps % 8 || one->steps < end_of_table)
            return 0;
        if (one->steps + (u64)one->count * sizeof(struct step) > size)
            return 0;
        struct step *steps = (struct step *)((char *)m + one->steps);
        for (u32 k = 0; k < one->count; k++) {
            if (!sound(m, &steps[k]) || (steps[k].op == EXEC) != (k == one->count - 1))
                return 0;
            if (steps[k].op == EXEC && steps[k].b + steps[k].c + 2 > most)
                most = steps[k].b + steps[k].c + 2;
        }
    }
    return most;
}

/* --- the steps of a process: each returns 0, or a negative errno ---------------------------------------------------- */

static long put(long from, int to)
{
    if (from < 0)
        return from;
    long done = from == to ? sys(fcntl, to, 2 /* F_SETFD */, 0, 0) : sys(dup3, from, to, 0, 0);
    return done < 0 ? done : 0;
}

static long write_all(long fd, const char *text, u64 size)
{
    long done = fd < 0 ? fd : 0;
    while (done >= 0 && size) {
        done = sys(write, fd, text, size, 0);
        if (done == -E_INTR)
            done = 0;
        if (done > 0) {
            text += done;
            size -= (u64)done;
        }
    }
    if (fd >= 0)
        sys(close, fd, 0, 0, 0);
    return done < 0 ? done : 0;
}

static long write_into(const char *path, const char *text) { return write_all(open_at(path, O_WRONLY), text, length(text)); }

/* Data: file, folder beside, file in that, folder. A job of root that handed controllers down has processes in leaves only
 * (EBUSY). A process that was created in the cgroup must not write: the write itself waits for the whole node. */
static long join(const char *file)
{
    const char *folder = next(file), *beside = next(folder);
    if (write_into(file, "0") == 0)
        return 0;
    sys(mkdirat, AT_FDCWD, folder, 0777, 0);
    return write_into(beside, "0");
}

static long pass(int gate)
{
    char let_go = 0;
    long got;
    do
        got = sys(read, gate, &let_go, 1, 0);
    while (got == -E_INTR);
    return got == 1 && let_go == '1' ? 0 : -E_PROTO;
}

static long become(const struct step *step, const void *groups)
{
    long done = sys(setgroups, step->size / 4, groups, 0, 0);
    if (done == 0)
        done = sys(setgid, step->b, 0, 0, 0);
    return done ? done : sys(setuid, step->a, 0, 0, 0);
}

/* Mounts of its own, to which those of the node come, and from which none goes there. */
static long leave_mounts(void)
{
    long done = sys(unshare, CLONE_NEWNS, 0, 0, 0);
    return done ? done : call(SYS_mount, 0, (u64)"/", 0, MS_REC | MS_SLAVE, 0, 0);
}

/* `options`: those that the mount has. Within another one (`within`) it may have been unmounted meanwhile. */
static long make_read_only(const char *path, u64 options, u64 within)
{
    long done = call(SYS_mount, 0, (u64)path, 0, MS_REMOUNT | MS_BIND | MS_RDONLY | options, 0, 0);
    return within && (done == -E_NOENT || done == -E_INVAL) ? 0 : done;
}

/* `dropped`: numbers of the capabilities that no program may have. It keeps those in force, which the steps behind need. */
static long bound(const u32 *dropped, u64 count)
{
    u32 header[2] = {CAPABILITY_VERSION_3, 0}, sets[6] = {0}; /* effective, permitted, inheritable; the same of the upper half */
    long done = 0;
    for (u64 i = 0; i < count && done == 0; i++)
        done = sys(prctl, PR_CAPBSET_DROP, dropped[i], 0, 0);
    sys(prctl, PR_CAP_AMBIENT, 4 /* PR_CAP_AMBIENT_CLEAR_ALL */, 0, 0); /* Linux 4.3 */
    done = done ? done : sys(capget, header, sets, 0, 0);
    for (u64 i = 0; i < count; i++)
        sets[2 + 3 * (dropped[i] / 32 % 2)] &= ~(1U << dropped[i] % 32);
    return done ? done : sys(capset, header, sets, 0, 0);
}

static long filter(const void *code, u64 size)
{
    struct { u64 count; u64 code; } program = {size / 8, (u64)code}; /* struct sock_fprog, whose count has 16 bits */
    return sys(prctl, PR_SET_SECCOMP, 2 /* SECCOMP_MODE_FILTER */, &program, 0);
}

/* With the folders above it; `path` ends at `end`. */
static long make_folder(char *path, u64 end)
{
    long done = sys(mkdirat, AT_FDCWD, path, 0777, 0);
    if (done == -E_NOENT) {
        u64 cut = end;
        while (cut && path[cut - 1] != '/')
            cut--;
        while (cut && path[cut - 1] == '/')
            cut--;
        if (!cut)
            return done;
        char kept = path[cut];
        path[cut] = 0;
        done = make_folder(path, cut);
        path[cut] = kept;
        if (done == 0)
            done = sys(mkdirat, AT_FDCWD, path, 0777, 0);
    }
    if (done) {
        long there = open_at(path, O_PATH | O_DIRECTORY);
        if (there >= 0) {
            sys(close, there, 0, 0, 0);
            return 0;
        }
    }
    return done;
}

static long make_folders(const char *path)
{
    char copy[MAX_PATH];
    u64 end = length(path);
    if (end >= sizeof copy)
        return -E_NAMETOOLONG;
    for (u64 i = 0; i <= end; i++)
        ((volatile char *)copy)[i] = path[i];
    return make_folder(copy, end);
}

static char *add(char *at, const char *text)
{
    while (*text)
        *at++ = *text++;
    *at = 0;
    return at;
}

static char *add_number(char *at, long number)
{
    char digits[24], *digit = digits + sizeof digits - 1;
    u64 left = number < 0 ? -(u64)number : (u64)number;
    *digit = 0;
    do
        *--digit = (char)('0' + left % 10);
    while (left /= 10);
    if (number < 0)
        *--digit = '-';
    return add(at, digit);
}

/* Data: folder, path, text. Several ranks may do so at the same time: a file is there whole or not at all. */
static long make_file(const char *folder)
{
    char new[MAX_PATH + 32];
    const char *path = next(folder), *text = next(path);
    long done = *folder ? make_folders(folder) : 0;
    if (done)
        return done;
    if (length(path) >= MAX_PATH)
        return -E_NAMETOOLONG;
    add_number(add(add(new, path), "."), sys(getpid, 0, 0, 0, 0));
    done = write_all(open_at(new, O_WRONLY | O_CREAT | O_TRUNC), text, length(text));
    return done ? done : call(SYS_renameat, (u64)AT_FDCWD, (u64)new, (u64)AT_FDCWD, (u64)path, 0, 0);
}

/* Each candidate as a shell tries the folders of PATH: the first error counts that is not "there is none". */
static long execute(const struct step *step, const char *candidate, char **pointers)
{
    long first = 0, last = 0;
    for (u64 i = 0; i < step->a; i++, candidate = next(candidate)) {
        last = sys(execve, candidate, pointers, pointers + step->b + 1, 0);
        if (!first && last != -E_NOENT && last != -E_NOTDIR)
            first = last;
    }
    return first ? first : last;
}

static long perform(struct message *m, const struct step *step, int joined, char **pointers)
{
    const char *at = data(m, step);
    u64 none = 0, limit[2] = {step->b, step->c};
    long done;
    switch (step->op) {
    case SESSION:
        done = sys(setsid, 0, 0, 0, 0);
        return done < 0 ? done : call(SYS_rt_sigprocmask, 2 /* SIG_SETMASK */, (u64)&none, 0, 8, 0, 0);
    case OUTPUT:
        done = put(open_at("/dev/null", O_RDONLY), 0);
        long out = done ? done : open_at(at, O_RDWR);
        done = put(out, 1);
        return done ? done : put(out, 2);
    case STREAMS:
        done = put((i32)step->a, 0);
        done = done ? done : put((i32)step->b, 1);
        return done ? done : put((i32)step->c, 2);
    case TERMINAL:
        return sys(ioctl, 0, TIOCSCTTY, 0, 0);
    case CGROUP:
        return joined ? 0 : join(at);
    case WRITE:
        return write_into(at, next(at));
    case GATE:
        return pass(m->gate);
    case LIMIT:
        return sys(prlimit64, 0, step->a, limit, 0);
    case CPUS:
        return sys(sched_setaffinity, 0, step->size, at, 0);
    case NICE:
        return sys(setpriority, 0, 0, (long)step->a, 0);
    case UMASK:
        sys(umask, step->a, 0, 0, 0);
        return 0;
    case USER:
        return become(step, at);
    case FOLDER:
        return make_folders(at);
    case FILE_:
        return make_file(at);
    case CHDIR:
        return sys(chdir, at, 0, 0, 0);
    case OWN_MOUNTS:
        return leave_mounts();
    case BIND:
        return call(SYS_mount, (u64)at, (u64)next(at), 0, MS_BIND | MS_REC, 0, 0);
    case READ_ONLY:
        return make_read_only(at, step->a, step->b);
    case BOUNDING_SET:
        return bound((const u32 *)at, step->size / 4);
    case NO_NEW_PRIVS:
        return sys(prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0);
    case SECCOMP:
        return filter(at, step->size);
    default:
        return execute(step, at, pointers);
    }
}

/* In one write of less than PIPE_BUF, so that lines of several processes do not mix. */
static void give_up(struct message *m, const struct process *one, const struct step *step, long error)
{
    char line[MAX_PATH];
    const char *reason = step->op == GATE ? "gate" : step->op == EXEC ? "exec" : "prepare";
    char *at = add_number(add(line, "{\"rank\": "), one->rank);
    at = add_number(add(at, ", \"pid\": "), sys(getpid, 0, 0, 0, 0));
    at = add(add(add(at, ", \"reason\": \""), reason), "\", \"errno\": ");
    at = add_number(at, step->op == GATE ? 0 : -error);
    at = add(add(add(at, ", \"cannot\": "), (char *)m + step->cannot), "}\n");
    sys(write, m->line, line, at - line, 0);
    leave(step->op != EXEC ? 125 : error == -E_NOENT || error == -E_NOTDIR ? 127 : 126);
}

static void live(struct message *m, struct process *one, int joined, char **pointers)
{
    const struct step *steps = (struct step *)((char *)m + one->steps);
    for (u32 i = 0; i < one->count; i++) {
        long error = perform(m, &steps[i], joined, pointers);
        if (error && steps[i].cannot)
            give_up(m, one, &steps[i], error);
    }
    leave(125); /* an EXEC without a text that failed */
}

/* --- the program ---------------------------------------------------------------------------------------------------- */

/* What execve(2) needs of one process, before that is created: it then writes to no page but its stack. */
static void point(struct message *m, const struct step *exec, char **pointers)
{
    const char *at = data(m, exec);
    for (u64 i = 0; i < exec->a; i++)
        at = next(at);
    for (u64 i = 0; i < exec->b; i++, at = next(at))
        *pointers++ = (char *)at;
    *pointers++ = 0;
    for (u64 i = 0; i < exec->c; i++, at = next(at))
        *pointers++ = (char *)at;
    *pointers = 0;
}

static long cgroup_of(struct message *m, const struct process *one)
{
    const struct step *steps = (struct step *)((char *)m + one->steps);
    for (u32 i = 0; i < one->count; i++)
        if (steps[i].op == CGROUP)
            return open_at(next(next(next(data(m, &steps[i])))), O_PATH | O_DIRECTORY);
    return -1;
}

static void create(struct message *m, struct process *one, char **pointers)
{
    u64 flags = CLONE_PARENT | CLONE_PARENT_SETTID;
    long pid = -1, cgroup = m->outside ? -1 : cgroup_of(m, one);
    one->pid = 0; /* so that the page is there for the kernel, whatever happens to us */
    if (cgroup >= 0) {
        struct clone_args args = {.flags = flags | CLONE_INTO_CGROUP, .parent_tid = (u64)&one->pid, .cgroup = (u64)cgroup};
        pid = sys(clone3, &args, sizeof args, 0, 0);
        if (pid == 0)
            live(m, one, 1, pointers);
        m->outside = pid < 0 ? (u32)-pid : 0;
        sys(close, cgroup, 0, 0, 0);
    }
    if (pid < 0) { /* whatever the reason: this way needs nothing */
        pid = call(SYS_clone, flags, 0, (u64)&one->pid, 0, 0, 0);
        if (pid == 0)
            live(m, one, 0, pointers);
    }
    if (pid < 0) {
        m->failed = (u32)(one - m->processes);
        m->error = (u32)-pid;
        leave(1);
    }
}

/* The compiler may put these in where a struct is cleared or copied. */
__attribute__((used)) void *memset(void *to, int value, u64 size)
{
    for (u64 i = 0; i < size; i++)
        ((volatile u8 *)to)[i] = (u8)value;
    return to;
}

__attribute__((used)) void *memcpy(void *to, const void *from, u64 size)
{
    for (u64 i = 0; i < size; i++)
        ((volatile u8 *)to)[i] = ((const u8 *)from)[i];
    return to;
}

static void *map(u64 size, u32 flags, long fd)
{
    long at = call(SYS_mmap, 0, size, 3 /* read, write */, flags, (u64)fd, 0);
    if (at < 0 && at > -4096)
        leave(125);
    return (void *)at;
}

__attribute__((used)) void begin(u64 *stack)
{
    u64 blocked = ~0UL, usual[4] = {0};
    char **argv = (char **)(stack + 1);
    long fd = 0, size;
    if (stack[0] != 3 || argv[1][0] != VERSION[0] || argv[1][1])
        leave(125);
    for (const char *digit = argv[2]; *digit; digit++) {
        fd = fd * 10 + (*digit - '0');
        if (*digit < '0' || *digit > '9' || fd > 1 << 30)
            leave(125);
    }
    /* Until each process unblocks them, signals neither end us in the middle nor fall to a disposition of the supervisor. */
    call(SYS_rt_sigprocmask, 2 /* SIG_SETMASK */, (u64)&blocked, 0, 8, 0, 0);
    for (u64 number = 1; number <= 64; number++)
        call(SYS_rt_sigaction, number, (u64)usual, 0, 8, 0, 0);
    sys(prctl, 15 /* PR_SET_NAME */, "muster-spawn", 0, 0);
    if (sys(close_range, 3, ~0U, 4 /* CLOSE_RANGE_CLOEXEC */, 0)) /* Linux before 5.11 */
        for (int other = 3; other < 4096; other++)
            sys(fcntl, other, 2 /* F_SETFD */, 1 /* FD_CLOEXEC */, 0);

    size = sys(lseek, fd, 0, 2 /* SEEK_END */, 0);
    if (size < (long)sizeof(struct message) || size > 1L << 31)
        leave(125);
    struct message *m = map((u64)size, 1 /* MAP_SHARED */, fd);
    u64 most = check(m, (u64)size);
    if (!most)
        leave(125);
    char **pointers = map(most * sizeof(char *), 0x22 /* MAP_PRIVATE | MAP_ANONYMOUS */, -1);
    for (u32 i = 0; i < m->count; i++) {
        struct process *one = &m->processes[i];
        point(m, (struct step *)((char *)m + one->steps) + one->count - 1, pointers);
        create(m, one, pointers);
    }
    leave(0);
}
