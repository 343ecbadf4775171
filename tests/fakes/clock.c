/* A wall clock that is set: adds the seconds that a file says to what CLOCK_REALTIME tells, and leaves all others alone.
 *
 * For LD_PRELOAD or /etc/ld.so.preload. The file lies beside this library, has its name and ".offset" behind it, and
 * holds an int64 of seconds. What the kernel stamps itself (times of files) is not moved.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

static const volatile int64_t *offset;
static int (*real_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    Dl_info self;
    char path[4096];
    real_clock_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    if (!dladdr((void *)begin, &self) || snprintf(path, sizeof path, "%s.offset", self.dli_fname) >= (int)sizeof path) {
        return;
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return;
    }
    void *at = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (at != MAP_FAILED) {
        offset = at;
    }
}

EXPORT int clock_gettime(clockid_t clock, struct timespec *now) {
    int done = real_clock_gettime ? real_clock_gettime(clock, now) : (int)syscall(SYS_clock_gettime, clock, now);
    if (done == 0 && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        now->tv_sec += *offset;
    }
    return done;
}

EXPORT int gettimeofday(struct timeval *now, void *zone) {
    struct timespec t;
    (void)zone;
    if (now == NULL || clock_gettime(CLOCK_REALTIME, &t) != 0) {
        return now == NULL ? 0 : -1;
    }
    now->tv_sec = t.tv_sec;
    now->tv_usec = t.tv_nsec / 1000;
    return 0;
}

EXPORT time_t time(time_t *at) {
    struct timespec t;
    if (clock_gettime(CLOCK_REALTIME, &t) != 0) {
        return (time_t)-1;
    }
    if (at) {
        *at = t.tv_sec;
    }
    return t.tv_sec;
}

EXPORT int timespec_get(struct timespec *now, int base) {
    return base == TIME_UTC && clock_gettime(CLOCK_REALTIME, now) == 0 ? base : 0;
}
