/* Arm's instructions on two numbers of 16 bits, in C: products for Cortex-M run on other processors with it. */
#include <stdint.h>

static inline int32_t __sxtb16(int32_t x)
{
    const uint32_t low = (uint32_t)(int32_t)(int8_t)(x & 0xFF), high = (uint32_t)(int32_t)(int8_t)((x >> 16) & 0xFF);
    return (int32_t)((low & UINT32_C(0xFFFF)) | (high << 16));
}

static inline int32_t __smlad(int32_t x, int32_t y, int32_t total)
{
    const int32_t low = (int16_t)(x & 0xFFFF) * (int16_t)(y & 0xFFFF), high = (x >> 16) * (y >> 16);
    return (int32_t)((uint32_t)low + (uint32_t)high + (uint32_t)total);
}
