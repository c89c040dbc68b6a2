/* SHA-256 of a file while it arrives: see hasher.h. */
#include "fetch/hasher.h"
#include "core/base/retry.h"
#include "fetch/libcrypto.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *hash_thread(void *context)
{
    struct hasher *h = context;
    EVP_MD_CTX *md = libcrypto.digest_new();
    unsigned char *buffer = malloc(1 << 20);
    bool ok = md && buffer && libcrypto.digest_init(md, libcrypto.sha256(), NULL) == 1;
    if (!ok) h->reason = ENOMEM;
    for (int64_t at = 0; ok && !atomic_load(&h->stop);) {
        bool last = atomic_load(&h->last);
        int64_t there = atomic_load(&h->available) - at;
        if (there <= 0 && last) break;
        if (there <= 0) {
            pthread_mutex_lock(&h->mutex);
            if (atomic_load(&h->available) <= at && !atomic_load(&h->last) && !atomic_load(&h->stop))
                pthread_cond_wait(&h->more, &h->mutex);
            pthread_mutex_unlock(&h->mutex);
            continue;
        }
        ssize_t n = retry_read(h->fd, buffer, there < 1 << 20 ? (size_t)there : 1 << 20, at);
        if (n < 0) h->reason = errno;
        ok = n > 0 && libcrypto.digest_update(md, buffer, (size_t)n) == 1;
        at += n > 0 ? n : 0;
        atomic_store(&h->done, at);
    }
    if (ok) ok = libcrypto.digest_final(md, h->digest, NULL) == 1;
    if (!ok) atomic_store(&h->failed, true);
    libcrypto.digest_free(md);
    free(buffer);
    return NULL;
}

int hasher_start(struct hasher *h, int fd, struct error *err)
{
    memset(h, 0, sizeof *h);
    int code = libcrypto_load(err);
    if (code) return code;
    h->fd = fd;
    pthread_mutex_init(&h->mutex, NULL);
    pthread_cond_init(&h->more, NULL);
    errno = pthread_create(&h->thread, NULL, hash_thread, h);
    h->started = errno == 0;
    return h->started ? 0 : error_errno(err, EXIT_FAILED, NULL, "cannot start a thread");
}

void hasher_feed(struct hasher *h, int64_t available, bool last)
{
    pthread_mutex_lock(&h->mutex);
    atomic_store(&h->available, available);
    if (last) atomic_store(&h->last, true);
    pthread_cond_signal(&h->more);
    pthread_mutex_unlock(&h->mutex);
}

void hasher_end(struct hasher *h, bool stop)
{
    if (!h->started) return;
    if (stop) {
        pthread_mutex_lock(&h->mutex);
        atomic_store(&h->stop, true);
        pthread_cond_signal(&h->more);
        pthread_mutex_unlock(&h->mutex);
    }
    pthread_join(h->thread, NULL);
    pthread_mutex_destroy(&h->mutex);
    pthread_cond_destroy(&h->more);
    h->started = false;
}
