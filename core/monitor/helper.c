/* The helper process: loads a vendor's library and reads it on request. It is a separate process because
 * these libraries hang in their initialisation, wait for each other's locks, and abort() over one unexpected
 * file. It reports each call before making it, so that the monitor knows which call did not return. */
#include "core/monitor/helper.h"
#include "core/base/platform.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

static void say(enum helper_kind kind, int card, int field, int result, double value, const char *text)
{
    struct helper_record r = {
        .kind = (int32_t)kind, .card = card, .field = field, .result = result, .value = value};
    snprintf(r.text, sizeof r.text, "%.199s", text ? text : "");
    if (send(HELPER_FD, &r, offsetof(struct helper_record, text) + strlen(r.text) + 1, MSG_NOSIGNAL) < 0)
        _exit(0); /* the monitor closed its end */
}

static void *load(const struct helper_library *l, const char *file)
{
    struct library library;
    if (!(file[0] ? library_open_file(file, &library) : library_open(l->library, &library))) {
        say(HELPER_FAILED, -1, 0, 0, 0, library.why);
        _exit(1);
    }
    say(HELPER_LIBRARY, -1, 0, 0, 0, library.path);
    return library.handle;
}

static void sample(const struct helper_library *l, int count, const struct helper_request *request)
{
    for (int card = 0; card < count; card++)
        for (int f = 0; f < MONITOR_FIELDS; f++) {
            if (request->skip[card] >> f & 1) continue;
            double value = 0;
            const char *why = NULL;
            say(HELPER_BEGIN, card, f, 0, 0, NULL);
            int result = l->read(card, f, request, &value, &why);
            if (why) say(HELPER_NOTE, card, f, 0, 0, why);
            say(HELPER_VALUE, card, f, result, value, NULL);
            struct monitor_holder list[HELPER_HOLDERS];
            int n = f == MONITOR_PROCESS && l->holders ? l->holders(list) : 0;
            for (int i = 0; i < n; i++) say(HELPER_HOLDER, card, f, list[i].pid, list[i].bytes, NULL);
        }
    say(HELPER_END, -1, 0, 0, 0, NULL);
}

int monitor_helper(const char *provider, const char *file)
{
    const struct helper_library *l =
        strcmp(provider, helper_nvml.provider) == 0 ? &helper_nvml : &helper_rsmi;
    struct helper_request request;
    int type;
    socklen_t size = sizeof type;
    if (getsockopt(HELPER_FD, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_SEQPACKET)
        return EXIT_USAGE;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* while a call hangs, no code here would notice that the socket is
                                       * closed */
    /* a helper that hangs must hold no inherited descriptors, locks above all */
    close_from(HELPER_FD + 1);
    signal(SIGINT, SIG_IGN); /* from the terminal: the controller handles them */
    say(HELPER_BEGIN, -1, 0, 0, 0, NULL);
    void *library = load(l, file);
    char why[200] = "";
    int count = l->open(library, why, sizeof why);
    if (count < 0) {
        say(HELPER_FAILED, -1, 0, 0, 0, why);
        _exit(1);
    }
    if (count > MONITOR_CARDS) count = MONITOR_CARDS;
    for (int i = 0; i < count; i++) {
        char name[128] = "", pci[16] = "";
        l->card(i, name, sizeof name, pci);
        say(HELPER_NAME, i, 0, 0, 0, name);
        say(HELPER_PCI, i, 0, 0, 0, pci);
    }
    say(HELPER_READY, count, 0, 0, 0, NULL);
    ssize_t n;
    while ((n = recv(HELPER_FD, &request, sizeof request, 0)) == (ssize_t)sizeof request ||
           (n < 0 && errno == EINTR))
        if (n > 0) sample(l, count, &request);
    _exit(0); /* no shutdown call: it may hang, too */
}
