/* Holds a pod's namespaces: sleeps until it is told to end, and reaps what the pod's processes leave behind. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal) { _exit(0); }
static void reap(int signal) { while (waitpid(-1, 0, WNOHANG) > 0); }

int main(void) {
    signal(SIGINT, end);
    signal(SIGTERM, end);
    signal(SIGCHLD, reap);
    for (;;) pause();
}
