// Preloaded by test_cheats.py: both clocks of the measured process, and of no other, run at a quarter of
// their speed from LoadGen's start on. The machine's own clock is never touched.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int is_measured_process(void) {
    static int known = -1;
    if (known < 0) {
        static char words[1 << 16];
        FILE *file = fopen("/proc/self/cmdline", "rb");
        size_t size = file ? fread(words, 1, sizeof words - 1, file) : 0;
        if (file) fclose(file);
        known = memmem(words, size, "harness.run.measured", 20) != NULL;
    }
    return known;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    static long long start[2];
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(clock, now);
    if ((clock == CLOCK_REALTIME || clock == CLOCK_MONOTONIC) && is_measured_process()) {
        long long *begun = &start[clock == CLOCK_MONOTONIC];
        long long ns = now->tv_sec * 1000000000LL + now->tv_nsec;
        if (!*begun) *begun = ns;
        ns = *begun + (ns - *begun) / 4;
        now->tv_sec = ns / 1000000000LL;
        now->tv_nsec = ns % 1000000000LL;
    }
    return status;
}
