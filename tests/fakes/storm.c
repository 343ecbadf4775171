/* A rank that cannot be caught by looking: `storm LANES SECONDS`. Each lane is a process that forks and ends in a tight
 * loop, with a session of its own for each of its lives, so that no group, session or parent ties it to the rank; all ignore
 * SIGTERM. Ends by itself after SECONDS.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int main(int count, char **words) {
    if (count != 3) {
        return 2;
    }
    int lanes = atoi(words[1]);
    time_t until = time(NULL) + atoi(words[2]);
    signal(SIGTERM, SIG_IGN);
    if (write(1, "storm\n", 6) != 6) {
        return 1;
    }
    for (int i = 0; i < lanes; i++) {
        if (fork() == 0) {
            while (time(NULL) < until) {
                if (fork() > 0) {
                    _exit(0);
                }
                setsid();
            }
            _exit(0);
        }
    }
    while (time(NULL) < until) {
        sleep(1);
    }
    return 0;
}
