// Preloaded by test_machine.py: the wall clock of the measured process, and of no other, jumps by two
// seconds once the file named by STEP_CLOCK_FILE exists. The machine's own clock is never touched.
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
    static int stepped;
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(clock, now);
    if (clock == CLOCK_REALTIME && is_measured_process()) {
        static unsigned calls;
        const char *file = getenv("STEP_CLOCK_FILE");
        if (!stepped && calls++ % 64 == 0 && file && access(file, F_OK) == 0) stepped = 1;
        if (stepped) now->tv_sec += 2;
    }
    return status;
}
