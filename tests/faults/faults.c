/* A disk that fails, for programs that write through the C library: to be loaded with LD_PRELOAD.

   Rules, one a line: CALL FIRST COUNT ACTION PATTERN.  The calls of that kind whose absolute path matches the pattern (as in
   a shell; * crosses slashes) are counted from 1; from number FIRST on COUNT of them (0: all) get the action.

   CALL    create (open for writing), open (for reading), read, write, sync, rename (by its new name), unlink,
           or change: all of them that change something
   ACTION  the name of an error (ENOSPC, EIO, EDQUOT, EROFS, EACCES), which the call then fails with;
           short      a write or read moves half of what was asked
           kill       the process ends by SIGKILL before the call
           torn       half of a write is done, then the process ends
           powercut   the process ends, and what was not synced is lost: the ends of files that were written since, and new
                      names whose folder was not synced
           trace      nothing; the call is told

   Rules come from the environment (FAULTS_RULES, and FAULTS_REPORT: a file that gets a line "CALL ACTION PATH" for each call
   that met a rule) or from faults_arm. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum call { CREATE, OPEN, READ, WRITE, SYNC, RENAME, UNLINK, CHANGE, CALLS };
enum action { FAIL, SHORT, KILL, TORN, POWERCUT, TRACE };

static const char* const call_names[CALLS] = {"create", "open", "read", "write", "sync", "rename", "unlink", "change"};

static const struct {
    const char* name;
    enum action action;
    int error;
} actions[] = {
    {"ENOSPC", FAIL, ENOSPC},  {"EIO", FAIL, EIO},  {"EDQUOT", FAIL, EDQUOT}, {"EROFS", FAIL, EROFS},
    {"EACCES", FAIL, EACCES},  {"short", SHORT, 0}, {"kill", KILL, 0},        {"torn", TORN, 0},
    {"powercut", POWERCUT, 0}, {"trace", TRACE, 0},
};

#define MOST 64

struct rule {
    enum call call;
    long first, count, seen;
    size_t action;
    char pattern[PATH_MAX];
};

/* A file with an end that was not synced: reachable, whatever its descriptor and its name became. */
struct unsynced {
    dev_t device;
    ino_t inode;
    int descriptor;
    off_t synced;
};

struct new_name {
    char old[PATH_MAX], new[PATH_MAX];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct rule rules[MOST];
static int rule_count, cuts_power, report = -1;
static struct unsynced unsynced[MOST];
static int unsynced_count;
static struct new_name new_names[MOST];
static int new_name_count;

#define REAL(name)                 \
    static __typeof__(&name) real; \
    if (!real) *(void**)&real = dlsym(RTLD_NEXT, #name)

void faults_arm(const char* text, const char* report_path);

/* ---- rules */

static void add_rule(char* line) {
    char call[16], action[16];
    int pattern_at = 0;
    struct rule* rule = &rules[rule_count];
    if (rule_count == MOST ||
        sscanf(line, "%15s %ld %ld %15s %n", call, &rule->first, &rule->count, action, &pattern_at) != 4 ||
        !pattern_at) {
        fprintf(stderr, "faults: not a rule: %s\n", line);
        abort();
    }
    int known_call = -1;
    for (int i = 0; i < CALLS; ++i) {
        if (!strcmp(call, call_names[i])) known_call = i;
    }
    size_t known_action = 0;
    while (known_action < sizeof actions / sizeof *actions && strcmp(action, actions[known_action].name))
        ++known_action;
    if (known_call < 0 || known_action == sizeof actions / sizeof *actions) {
        fprintf(stderr, "faults: unknown call or action: %s\n", line);
        abort();
    }
    rule->call = (enum call)known_call;
    rule->action = known_action;
    rule->seen = 0;
    snprintf(rule->pattern, sizeof rule->pattern, "%s", line + pattern_at);
    cuts_power |= actions[known_action].action == POWERCUT;
    ++rule_count;
}

void faults_arm(const char* text, const char* report_path) {
    char *copy = strdup(text), *rest = copy;
    rule_count = cuts_power = 0;
    for (char* line; (line = strsep(&rest, "\n"));) {
        if (*line) add_rule(line);
    }
    free(copy);
    report = report_path
                 ? (int)syscall(SYS_openat, AT_FDCWD, report_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)
                 : -1;
}

__attribute__((constructor)) static void arm_from_environment(void) {
    const char* text = getenv("FAULTS_RULES");
    if (text) faults_arm(text, getenv("FAULTS_REPORT"));
}

static void tell(enum call call, const struct rule* rule, const char* path) {
    char line[PATH_MAX + 64];
    const int length = snprintf(line, sizeof line, "%s %s %s\n", call_names[call], actions[rule->action].name, path);
    if (report >= 0) syscall(SYS_write, report, line, (size_t)length);
}

static void die(void) {
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;) pause();
}

static void lose_what_was_not_synced(void) {
    for (int i = 0; i < unsynced_count; ++i) syscall(SYS_ftruncate, unsynced[i].descriptor, unsynced[i].synced);
    while (new_name_count-- > 0) {
        syscall(SYS_renameat2, AT_FDCWD, new_names[new_name_count].new, AT_FDCWD, new_names[new_name_count].old, 0);
    }
}

/* What is to become of a call: TRACE, where it is to be done as if nothing were; with FAIL errno is set. */
static enum action fate(enum call call, const char* path) {
    enum action found = TRACE;
    int error = 0;
    if (!rule_count || path[0] != '/') return TRACE;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < rule_count && found == TRACE; ++i) {
        struct rule* rule = &rules[i];
        const int is_meant = rule->call == call || (rule->call == CHANGE && call != OPEN && call != READ);
        if (!is_meant || fnmatch(rule->pattern, path, 0)) continue;
        ++rule->seen;
        if (rule->seen < rule->first || (rule->count && rule->seen >= rule->first + rule->count)) continue;
        tell(call, rule, path);
        found = actions[rule->action].action;
        error = actions[rule->action].error;
        if (found == POWERCUT) lose_what_was_not_synced();
        if (found == KILL || found == POWERCUT || (found == TORN && call != WRITE)) die();
    }
    pthread_mutex_unlock(&lock);
    if (error) errno = error;
    return found;
}

/* ---- paths */

static void path_of(int descriptor, char path[PATH_MAX]) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    const ssize_t length = readlink(link, path, PATH_MAX - 1);
    path[length > 0 ? length : 0] = '\0';
}

static void absolute(int folder, const char* name, char path[PATH_MAX]) {
    if (name[0] == '/') {
        snprintf(path, PATH_MAX, "%s", name);
        return;
    }
    if (folder == AT_FDCWD) {
        if (!getcwd(path, PATH_MAX)) path[0] = '\0';
    } else {
        path_of(folder, path);
    }
    const size_t length = strlen(path);
    snprintf(path + length, PATH_MAX - length, "/%s", name);
}

/* ---- what a power cut would lose */

static void note_write(int descriptor) {
    struct stat status;
    if (!cuts_power || fstat(descriptor, &status) || !S_ISREG(status.st_mode)) return;
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < unsynced_count && (unsynced[i].device != status.st_dev || unsynced[i].inode != status.st_ino)) ++i;
    if (i == unsynced_count && i < MOST) {
        const int copy = fcntl(descriptor, F_DUPFD_CLOEXEC, 500);
        unsynced[unsynced_count++] = (struct unsynced){status.st_dev, status.st_ino, copy, status.st_size};
    }
    pthread_mutex_unlock(&lock);
}

static int parent_is(const char* path, const char* folder) {
    const size_t length = strlen(folder);
    return !strncmp(path, folder, length) && path[length] == '/' && !strchr(path + length + 1, '/');
}

static void note_sync(int descriptor, const char* path) {
    struct stat status;
    if (!cuts_power || fstat(descriptor, &status)) return;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < unsynced_count; ++i) {
        if (unsynced[i].device == status.st_dev && unsynced[i].inode == status.st_ino) {
            close(unsynced[i].descriptor);
            unsynced[i--] = unsynced[--unsynced_count];
        }
    }
    for (int i = 0; i < new_name_count; ++i) {
        if (parent_is(new_names[i].new, path)) new_names[i--] = new_names[--new_name_count];
    }
    pthread_mutex_unlock(&lock);
}

static void note_rename(const char* old, const char* new) {
    pthread_mutex_lock(&lock);
    if (cuts_power && new_name_count < MOST) {
        snprintf(new_names[new_name_count].old, PATH_MAX, "%s", old);
        snprintf(new_names[new_name_count].new, PATH_MAX, "%s", new);
        ++new_name_count;
    }
    pthread_mutex_unlock(&lock);
}

/* ---- the calls */

static int open_at(int folder, const char* name, int flags, mode_t mode) {
    REAL(openat);
    char path[PATH_MAX];
    absolute(folder, name, path);
    if (fate((flags & O_ACCMODE) == O_RDONLY ? OPEN : CREATE, path) == FAIL) return -1;
    return real(folder, name, flags, mode);
}

#define OPEN_FUNCTION(name, parameters, folder)    \
    int name parameters {                          \
        mode_t mode = 0;                           \
        if (flags & O_CREAT) {                     \
            va_list more;                          \
            va_start(more, flags);                 \
            mode = (mode_t)va_arg(more, unsigned); \
            va_end(more);                          \
        }                                          \
        return open_at(folder, path, flags, mode); \
    }

OPEN_FUNCTION(open, (const char* path, int flags, ...), AT_FDCWD)
OPEN_FUNCTION(open64, (const char* path, int flags, ...), AT_FDCWD)
OPEN_FUNCTION(openat, (int folder, const char* path, int flags, ...), folder)
OPEN_FUNCTION(openat64, (int folder, const char* path, int flags, ...), folder)

/* Half of a count, but something. */
static size_t half(size_t count) { return count > 1 ? count / 2 : count; }

#define MOVE_FUNCTION(kind, name, parameters, whole, part)           \
    ssize_t name parameters {                                        \
        REAL(name);                                                  \
        char path[PATH_MAX] = "";                                    \
        if (rule_count) path_of(descriptor, path);                   \
        const enum action action = fate(kind, path);                 \
        if (action == FAIL) return -1;                               \
        if (kind == WRITE && path[0] == '/') note_write(descriptor); \
        if (action == SHORT || action == TORN) {                     \
            const ssize_t moved = real part;                         \
            if (action == TORN) die();                               \
            return moved;                                            \
        }                                                            \
        return real whole;                                           \
    }

MOVE_FUNCTION(READ, read, (int descriptor, void* data, size_t size), (descriptor, data, size),
              (descriptor, data, half(size)))
MOVE_FUNCTION(READ, pread64, (int descriptor, void* data, size_t size, off64_t at), (descriptor, data, size, at),
              (descriptor, data, half(size), at))
MOVE_FUNCTION(WRITE, write, (int descriptor, const void* data, size_t size), (descriptor, data, size),
              (descriptor, data, half(size)))
MOVE_FUNCTION(WRITE, pwrite64, (int descriptor, const void* data, size_t size, off64_t at),
              (descriptor, data, size, at), (descriptor, data, half(size), at))
MOVE_FUNCTION(WRITE, writev, (int descriptor, const struct iovec* parts, int count), (descriptor, parts, count),
              (descriptor, parts, (int)half((size_t)count)))
MOVE_FUNCTION(WRITE, sendfile64, (int descriptor, int from, off64_t* at, size_t size), (descriptor, from, at, size),
              (descriptor, from, at, half(size)))

#define SYNC_FUNCTION(name)                        \
    int name(int descriptor) {                     \
        REAL(name);                                \
        char path[PATH_MAX] = "";                  \
        if (rule_count) path_of(descriptor, path); \
        if (fate(SYNC, path) == FAIL) return -1;   \
        const int status = real(descriptor);       \
        if (!status) note_sync(descriptor, path);  \
        return status;                             \
    }

SYNC_FUNCTION(fsync)
SYNC_FUNCTION(fdatasync)

int renameat(int old_folder, const char* old, int new_folder, const char* new) {
    REAL(renameat);
    char old_path[PATH_MAX], new_path[PATH_MAX];
    absolute(old_folder, old, old_path);
    absolute(new_folder, new, new_path);
    if (fate(RENAME, new_path) == FAIL) return -1;
    const int was_there = !faccessat(new_folder, new, F_OK, 0);
    const int status = real(old_folder, old, new_folder, new);
    if (!status && !was_there) note_rename(old_path, new_path);
    return status;
}

int rename(const char* old, const char* new) { return renameat(AT_FDCWD, old, AT_FDCWD, new); }

int unlinkat(int folder, const char* name, int flags) {
    REAL(unlinkat);
    char path[PATH_MAX];
    absolute(folder, name, path);
    return fate(UNLINK, path) == FAIL ? -1 : real(folder, name, flags);
}

int unlink(const char* name) { return unlinkat(AT_FDCWD, name, 0); }
