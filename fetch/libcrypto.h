/* Checksums by libcrypto of OpenSSL, loaded on first use, as libcurl is (libcurl.h). */
#ifndef MEOPT_FETCH_LIBCRYPTO_H
#define MEOPT_FETCH_LIBCRYPTO_H

#include "core/base/error.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

/* X(field, function) */
#define LIBCRYPTO_FUNCTIONS(X)                                                                               \
    X(version, OpenSSL_version)                                                                              \
    X(sha1, EVP_sha1)                                                                                        \
    X(sha256, EVP_sha256)                                                                                    \
    X(digest, EVP_Digest)                                                                                    \
    X(digest_new, EVP_MD_CTX_new)                                                                            \
    X(digest_init, EVP_DigestInit_ex)                                                                        \
    X(digest_update, EVP_DigestUpdate)                                                                       \
    X(digest_final, EVP_DigestFinal_ex)                                                                      \
    X(digest_free, EVP_MD_CTX_free)

struct libcrypto {
#define LIBCRYPTO_FIELD(field, function) __typeof__(function) *field;
    LIBCRYPTO_FUNCTIONS(LIBCRYPTO_FIELD)
#undef LIBCRYPTO_FIELD
};

/* Fills `libcrypto`, whose functions cannot be called before. Returns 0 or EXIT_FAILED. */
int libcrypto_load(struct error *err);
extern struct libcrypto libcrypto;

/* NULL in programs that libcrypto is not linked into. */
extern const struct libcrypto libcrypto_linked __attribute__((weak));

#endif
