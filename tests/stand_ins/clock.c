// Preloaded by stand_ins/clock.py: changes the clocks of the measured process, and of no other. The
// machine's own clock is never touched.
// SLOW_CLOCK=1: the wall clock and the monotonic clock run at a quarter of their speed from the first reading on.
// CLOCK_OF=WORD: of the processes with this in their command line in place of the measured process.
// STEP_CLOCK_FILE=PATH: the wall clock jumps by two seconds once PATH exists.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static int is_measured_process(void) {
    static int known = -1;
    if (known < 0) {
        static char words[1 << 16];
        FILE *file = fopen("/proc/self/cmdline", "rb");
        size_t size = file ? fread(words, 1, sizeof words - 1, file) : 0;
        if (file) fclose(file);
        const char *word = getenv("CLOCK_OF") ? getenv("CLOCK_OF") : "harness.run.measured";
        known = memmem(words, size, word, strlen(word)) != NULL;
    }
    return known;
}

static void slow_down(clockid_t clock, struct timespec *now) {
    static long long start[2];
    long long *begun = &start[clock == CLOCK_MONOTONIC];
    long long ns = now->tv_sec * 1000000000LL + now->tv_nsec;
    if (!*begun) *begun = ns;
    ns = *begun + (ns - *begun) / 4;
    now->tv_sec = ns / 1000000000LL;
    now->tv_nsec = ns % 1000000000LL;
}

static void step(struct timespec *now, const char *file) {
    static int stepped;
    static unsigned calls;
    if (!stepped && calls++ % 64 == 0 && access(file, F_OK) == 0) stepped = 1;
    if (stepped) now->tv_sec += 2;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(clock, now);
    if ((clock != CLOCK_REALTIME && clock != CLOCK_MONOTONIC) || !is_measured_process()) return status;
    const char *file = getenv("STEP_CLOCK_FILE");
    if (getenv("SLOW_CLOCK")) slow_down(clock, now);
    if (file && clock == CLOCK_REALTIME) step(now, file);
    return status;
}

// The kernel's own stamps (SO_TIMESTAMPNS) are of the machine's clock, so a process whose clock jumps gets none.
int setsockopt(int fd, int level, int name, const void *value, socklen_t size) {
    static int (*real)(int, int, int, const void *, socklen_t);
    if (!real) real = (int (*)(int, int, int, const void *, socklen_t))dlsym(RTLD_NEXT, "setsockopt");
    if (level == SOL_SOCKET && name == 35 && getenv("STEP_CLOCK_FILE") && is_measured_process()) return 0;
    return real(fd, level, name, value, size);
}
