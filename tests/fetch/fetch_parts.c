/* The pieces of fetch that need no network: state files, claims, header lines, sources, backoff. */
#include "core/base/file.h"
#include "core/base/path.h"
#include "fetch/http.h"
#include "fetch/partial.h"
#include "fetch/sources.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

static char scratch[] = "/tmp/meopt-parts-XXXXXX";

static void state_text(void **state)
{
    struct partial_state a = {.total = 1000,
                              .segment_count = 2,
                              .segments = {{0, 500, 500}, {500, 1000, 20}}},
                         b;
    memset(a.boot, 'a', 36);
    memset(a.url_hash, 'b', 64);
    snprintf(a.validator, sizeof a.validator, "\"tag with spaces\"");
    char *text = partial_state_text(&a);
    size_t n = strlen(text);
    assert_true(partial_state_parse(&b, text, n));
    assert_string_equal(b.validator, a.validator);
    assert_int_equal(b.segment_count, 2);
    assert_int_equal(partial_contiguous_bytes(&b), 520);
    assert_int_equal(partial_bytes(&b), 520);
    b.segments[0].done = 100;
    assert_int_equal(partial_contiguous_bytes(&b), 100);
    for (size_t i = 0; i < n; i++) { /* any changed byte, any cut */
        text[i] ^= 1;
        assert_false(partial_state_parse(&b, text, n));
        text[i] ^= 1;
        assert_false(partial_state_parse(&b, text, i));
    }
    free(text);
}

static struct http_headers read_headers(const char *text)
{
    struct http_headers h = {0};
    while (*text) {
        size_t n = strcspn(text, "\n") + 1;
        http_header(&h, text, n);
        text += n;
    }
    return h;
}

static void headers(void **state)
{
    struct http_headers h =
        read_headers("HTTP/1.1 302 Found\r\nETag: \"old\"\r\nHTTP/2 206\r\ncontent-range: bytes "
                     "5-9/100\r\nETag: \"new\"\r\nRetry-After: 7\r\n");
    assert_int_equal(h.status, 206);
    assert_true(h.has_range && !h.bad_range);
    assert_int_equal(h.start, 5);
    assert_int_equal(h.end, 9);
    assert_int_equal(h.total, 100);
    assert_int_equal(h.retry_after, 7);
    assert_string_equal(http_validator(&h), "\"new\"");
    h = read_headers("HTTP/1.1 429 Too Many\r\nRateLimit: \"resolvers\";r=0;t=55\r\n");
    assert_int_equal(h.retry_after, 55);
    h = read_headers("HTTP/1.1 429 Too Many\r\nRateLimit: \"api\";r=0;t=\r\nRateLimit-Policy: \"a\";t=9\r\n");
    assert_int_equal(h.retry_after, -1);
    h = read_headers(
        "HTTP/1.1 200 OK\r\nRateLimit: \"api\";r=9;t=55\r\n"); /* of an answer that is not a refusal */
    assert_int_equal(h.retry_after, -1);
    h = read_headers("HTTP/1.1 200 OK\r\nETag: W/\"weak\"\r\nLast-Modified: Wed, 21 Oct 2015 07:28:00 "
                     "GMT\r\nContent-Length: 12\r\n");
    assert_string_equal(http_validator(&h), "Wed, 21 Oct 2015 07:28:00 GMT");
    assert_int_equal(h.length, 12);
    h = read_headers("HTTP/1.1 200 OK\r\nETag: W/\"weak\"\r\n");
    assert_string_equal(http_validator(&h), "");
    h = read_headers("HTTP/1.1 416 no\r\nContent-Range: bytes */77\r\n");
    assert_int_equal(h.total, 77);
    assert_false(h.bad_range);
    static const char *const bad[] = {"bytes 9-5/100",  "bytes 5-9/9",
                                      "bytes 5-/9",     "octets 1-2/3",
                                      "bytes -5/9",     "bytes 5-9",
                                      "bytes 5-9/",     "bytes 99999999999999999999-1/2",
                                      "bytes 5-9/100x", ""};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char line[100];
        snprintf(line, sizeof line, "Content-Range: %s\r\n", bad[i]);
        http_header(&h, "HTTP/1.1 206 x", 14);
        http_header(&h, line, strlen(line));
        assert_true(h.has_range && h.bad_range);
    }
    assert_true(http_status_retry(503) && http_status_retry(429) && http_status_retry(524) &&
                !http_status_retry(404) && !http_status_retry(403) && !http_status_retry(410));
    assert_true(http_curl_retry(18) && http_curl_retry(28) && http_curl_retry(56) && http_curl_retry(7) &&
                http_curl_retry(92) && !http_curl_retry(60) && !http_curl_retry(23));
    assert_true(http_backoff(1, 0.999) < 1 && http_backoff(4, 0.999) > 7.9 && http_backoff(50, 0.999) < 60 &&
                http_backoff(3, 0) >= 0);
}

static void put(const struct partial *part, const char *text, int64_t at)
{
    assert_int_equal(pwrite(part->fd, text, strlen(text), at), (ssize_t)strlen(text));
}

static void claims(void **state)
{
    char *directory = path_join(scratch, "claims");
    struct partial part, second;
    struct error err = {0};
    bool here = false;
    assert_int_equal(partial_claim(&part, directory, "a.tar", &here, &err), 0);
    assert_int_equal(partial_reset(&part, &err), 0);
    part.state.total = 10;
    part.state.segment_count = 1;
    part.state.segments[0] = (struct partial_segment){0, 10, 0};
    memset(part.state.url_hash, 'c', 64);
    assert_int_equal(partial_commit(&part, &err), 0);
    put(&part, "hello", 0); /* not committed: must survive the death of the process */
    assert_int_equal(partial_claim(&second, directory, "a.tar", &here, &err), EXIT_LOCKED);
    assert_true(here);
    char owner[30];
    snprintf(owner, sizeof owner, " %ld ", (long)getpid());
    assert_non_null(strstr(err.what, owner));
    partial_release(&part, true, NULL);
    pid_t child = fork(); /* claims, writes, dies without a word */
    if (child == 0) {
        if (partial_claim(&second, directory, "a.tar", &here, &err) || second.state.segments[0].done != 5)
            _exit(1);
        put(&second, "!!", 5);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    int64_t bytes, total;
    partial_status(directory, "a.tar", &bytes, &total);
    assert_int_equal(bytes, 7);
    assert_int_equal(total, 10);
    assert_int_equal(partial_claim(&part, directory, "a.tar", &here, &err), 0); /* a dead owner's */
    assert_int_equal(part.state.segments[0].done, 7);
    /* the machine was started again: only what was committed counts */
    struct partial_state old = part.state;
    old.segments[0].done = 2;
    old.boot[0] ^= 1;
    char *state_path = path_join(directory, "a.tar.state"), *text = partial_state_text(&old);
    partial_release(&part, true, NULL);
    assert_int_equal(file_write_atomic(state_path, text, strlen(text), &err), 0);
    assert_int_equal(partial_claim(&part, directory, "a.tar", &here, &err), 0);
    assert_int_equal(part.state.segments[0].done, 2);
    partial_release(&part, false, NULL);
    assert_int_equal(access(directory, F_OK), -1); /* nothing left */
    /* an owner on another machine is never taken over */
    assert_int_equal(mkdir(directory, 0700), 0);
    char *foreign = path_join(directory, "a.tar.part.otherhost.1.5.6");
    close(open(foreign, O_CREAT | O_WRONLY, 0600));
    assert_int_equal(partial_claim(&part, directory, "a.tar", &here, &err), EXIT_LOCKED);
    assert_false(here);
    assert_int_equal(access(foreign, F_OK), 0);
    assert_int_equal(file_remove_tree(directory, &err), 0);
    free(foreign);
    free(text);
    free(state_path);
    free(directory);
}

static void claim_race(void **state)
{
    enum { N = 8, ROUNDS = 30 };
    char *directory = path_join(scratch, "race");
    for (int round = 0; round < ROUNDS; round++) {
        int go[2], won[2], hold[2];
        assert_int_equal(pipe(go), 0);
        assert_int_equal(pipe(hold), 0);
        assert_int_equal(pipe(won), 0);
        pid_t pids[N];
        for (int i = 0; i < N; i++) {
            pids[i] = fork();
            if (pids[i] == 0) {
                struct partial part;
                struct error err = {0};
                bool here;
                char c;
                close(go[1]);
                close(hold[1]);
                ssize_t n = read(go[0], &c, 1);
                int code = n == 0 ? partial_claim(&part, directory, "b.tar", &here, &err) : -1;
                c = code == 0 ? 'w' : code == EXIT_LOCKED ? 'l' : 'e';
                n = write(won[1], &c, 1);
                while (read(hold[0], &c, 1) > 0) /* keep it until all have tried */
                    ;
                if (code == 0) partial_release(&part, false, NULL);
                _exit(0);
            }
        }
        close(go[0]);
        close(go[1]);
        close(won[1]);
        char results[N + 1] = "";
        int n = 0;
        while (n < N && read(won[0], results + n, 1) == 1) n++;
        int winners = 0, errors = 0;
        for (int i = 0; i < n; i++) {
            winners += results[i] == 'w';
            errors += results[i] == 'e';
        }
        close(won[0]);
        close(hold[0]);
        close(hold[1]);
        for (int i = 0; i < N; i++) waitpid(pids[i], NULL, 0);
        assert_int_equal(errors, 0);
        assert_int_equal(winners, 1);
    }
    free(directory);
}

static int add(const char *text, struct error *err)
{
    struct sources s = {0};
    *err = (struct error){0};
    int code = sources_add(&s, text, strlen(text), "/etc/x/sources.yaml", err);
    sources_free(&s);
    return code;
}

static void sources(void **state)
{
    struct sources s = {0};
    struct error err = {0};
    const char *text = "sources:\n  a: {file: a.tar.gz, url: [https://x/y, 'file:../z.tar.gz'], size: 5, "
                       "top: A}\n  g: {includes: [a]}\n";
    assert_int_equal(sources_add(&s, text, strlen(text), "/etc/x/sources.yaml", &err), 0);
    const struct source *a = sources_find(&s, "a");
    assert_non_null(a);
    assert_int_equal(a->url_count, 2);
    assert_string_equal(a->urls[1], "file:///etc/x/../z.tar.gz");
    assert_int_equal(a->size, 5);
    assert_int_equal(a->entries, -1);
    text = "sources:\n  a: {file: b.tar.gz, url: https://x/y}\n";
    assert_int_equal(sources_add(&s, text, strlen(text), "/home/u/sources.yaml", &err), 0);
    assert_int_equal(s.count, 2);
    assert_string_equal(sources_find(&s, "a")->file, "b.tar.gz");
    sources_free(&s);
    static const char *const wrong[] = {"",
                                        "x",
                                        "sources: 5",
                                        "sources:\n  a: {url: https://x}",
                                        "sources:\n  a: {file: a, url: ftp://x}",
                                        "sources:\n  a: {file: ../a, url: https://x}",
                                        "sources:\n  a: {file: a, url: https://x, size: -1}",
                                        "sources:\n  a: {file: a, url: https://x, sha256: 12}",
                                        "sources:\n  a: {file: a, url: https://x, unknown_key: 1}",
                                        "sources:\n  a: {file: a, url: https://x, file: b}",
                                        "sources:\n  a: {includes: [b], url: https://x, file: f}",
                                        "sources:\n  a: [",
                                        "sources:\n  ../a: {file: a, url: https://x}",
                                        "sources:\n  a: {file: a, url: []}",
                                        "sources:\n  a: {file: a, url: [{}]}"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        if (add(wrong[i], &err) != EXIT_CONFIG || !err.what[0]) fail_msg("taken: %s", wrong[i]);
    }
    char shown[100];
    assert_string_equal(url_printable(shown, sizeof shown, "https://user:secret@host:8/p/a.tar?token=1#x"),
                        "https://host:8/p/a.tar");
    assert_string_equal(url_printable(shown, sizeof shown, "https://h/\033[2J\n"), "https://h/\\x1b[2J\\x0a");
}

int main(void)
{
    if (!mkdtemp(scratch)) return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(state_text), cmocka_unit_test(headers),
                                       cmocka_unit_test(claims), cmocka_unit_test(claim_race),
                                       cmocka_unit_test(sources)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    file_remove_tree(scratch, NULL);
    return failed;
}
