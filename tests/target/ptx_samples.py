"""PTX that is written by hand, to try the driver with."""

# Floats plus 1: parameters are a source, a target and how many.
PLUS_ONE = b"""
.version 8.0
.target sm_80
.address_size 64
.visible .entry plus_one(.param .u64 source, .param .u64 target, .param .u64 size)
{
    .reg .pred %p;
    .reg .b32 %r<4>;
    .reg .b64 %d<7>;
    .reg .f32 %f<2>;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.s32 %r1, %r1, %r2, %r3;
    cvt.u64.u32 %d1, %r1;
    ld.param.u64 %d2, [size];
    setp.ge.u64 %p, %d1, %d2;
    @%p bra done;
    ld.param.u64 %d3, [source];
    ld.param.u64 %d4, [target];
    cvta.to.global.u64 %d3, %d3;
    cvta.to.global.u64 %d4, %d4;
    shl.b64 %d5, %d1, 2;
    add.u64 %d3, %d3, %d5;
    add.u64 %d4, %d4, %d5;
    ld.global.f32 %f1, [%d3];
    add.f32 %f1, %f1, 0f3F800000;
    st.global.f32 [%d4], %f1;
done:
    ret;
}
"""
