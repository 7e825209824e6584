// A clock on the wall that is wrong by the number of seconds in a file. Loaded before the C library (LD_PRELOAD), for a
// test; the steady clock is as it is.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *time) {
    long failed = syscall(SYS_clock_gettime, clock, time);
    const char *path = getenv("MLXCEL_TEST_CLOCK");
    if (failed || clock != CLOCK_REALTIME || !path) return (int)failed;
    FILE *file = fopen(path, "r");
    long long seconds = 0;
    if (file && fscanf(file, "%lld", &seconds) == 1) time->tv_sec += seconds;
    if (file) fclose(file);
    return 0;
}
