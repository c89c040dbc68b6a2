/* CRC-32C. */
#ifndef MEOPT_BASE_CRC32C_H
#define MEOPT_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* CRC-32C (Castagnoli, RFC 3720 appendix B.4), continuing from `crc` (0 to begin). */
uint32_t crc32c(uint32_t crc, const void *data, size_t bytes);

#endif
