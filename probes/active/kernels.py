"""The kernels of the active checks, as PTX, which the driver translates for the card that it has.

Every result is known beforehand, and a kernel counts those that differ. mma.sync is there from compute capability 8.0
on; older cards compute with `plain`.
"""

#: What one round adds to each sum of `tensor` (16 products of 1.5 * 0.5 and 16 of 0.25 * 2) and of `plain` (a product
#: of each kind). Sums stay exact below 2^24.
TENSOR_STEP, PLAIN_STEP = 20.0, 1.25
#: Threads of a block; sums that a thread keeps at once, so that one need not wait for the other.
THREADS, SUMS = 256, 4
#: Floating point operations of a warp in one round: two mma of 16 x 8 x 16 for each sum; of `plain`: two for each sum.
TENSOR_OPERATIONS = SUMS * 2 * (16 * 8 * 16 * 2)
PLAIN_OPERATIONS = 32 * SUMS * 2 * 2

_HEAD = ".version {version}\n.target {target}\n.address_size 64\n"

#: A kernel that adds products of constants to its sums, and compares these in the end.
_SUMS = """
.visible .entry {name}(.param .u64 wrong, .param .u32 rounds, .param .f32 expected)
{{
    .reg .pred %p<2>;
    .reg .b32 %n<3>;
    .reg .{kind} %x<2>, %y<2>;
    .reg .f32 %s<{many}>, %want;
    .reg .b64 %to;
    ld.param.u64 %to, [wrong];
    ld.param.u32 %n0, [rounds];
    ld.param.f32 %want, [expected];
{constants}
{zero}
ROUND:
{multiply}
    sub.u32 %n0, %n0, 1;
    setp.ne.u32 %p0, %n0, 0;
    @%p0 bra ROUND;
    mov.u32 %n1, 0;
{compare}
    setp.ne.u32 %p0, %n1, 0;
    @%p0 red.global.add.u32 [%to], %n1;
    ret;
}}
"""
#: 1.5, 0.5, 0.25 and 2, as pairs of bf16 and as fp32.
_BF16 = {"%x0": "0x3fc03fc0", "%y0": "0x3f003f00", "%x1": "0x3e803e80", "%y1": "0x40004000"}
_FP32 = {"%x0": "0f3fc00000", "%y0": "0f3f000000", "%x1": "0f3e800000", "%y1": "0f40000000"}
_MMA = (
    "    mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {{{s}}}, "
    "{{%x{k}, %x{k}, %x{k}, %x{k}}}, {{%y{k}, %y{k}}}, {{{s}}};"
)
_COMPARE = "    setp.neu.f32 %p1, %s{i}, %want;\n    @%p1 add.u32 %n1, %n1, 1;"

#: Word i of the pattern is i * 2654435761 xor a seed (the golden ratio's number of Knuth's multiplicative hash): words
#: beside each other differ in many bits.
_MEMORY = """
.visible .entry fill(.param .u64 at, .param .u64 words, .param .u32 seed)
{
    .reg .pred %p;
    .reg .b32 %r<6>;
    .reg .b64 %at, %i, %words, %step, %to;
    ld.param.u64 %at, [at];
    ld.param.u64 %words, [words];
    ld.param.u32 %r0, [seed];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %nctaid.x;
    mad.wide.u32 %i, %r2, %r3, 0;
    cvt.u64.u32 %step, %r1;
    add.u64 %i, %i, %step;
    mul.wide.u32 %step, %r3, %r4;
NEXT:
    setp.ge.u64 %p, %i, %words;
    @%p bra DONE;
    cvt.u32.u64 %r5, %i;
    mul.lo.u32 %r5, %r5, 2654435761;
    xor.b32 %r5, %r5, %r0;
    shl.b64 %to, %i, 2;
    add.u64 %to, %to, %at;
    st.global.u32 [%to], %r5;
    add.u64 %i, %i, %step;
    bra NEXT;
DONE:
    ret;
}

.visible .entry verify(.param .u64 at, .param .u64 words, .param .u32 seed, .param .u64 wrong)
{
    .reg .pred %p, %q;
    .reg .b32 %r<8>;
    .reg .b64 %at, %i, %words, %step, %from, %to;
    ld.param.u64 %at, [at];
    ld.param.u64 %words, [words];
    ld.param.u32 %r0, [seed];
    ld.param.u64 %to, [wrong];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %nctaid.x;
    mad.wide.u32 %i, %r2, %r3, 0;
    cvt.u64.u32 %step, %r1;
    add.u64 %i, %i, %step;
    mul.wide.u32 %step, %r3, %r4;
    mov.u32 %r7, 0;
NEXT:
    setp.ge.u64 %p, %i, %words;
    @%p bra DONE;
    cvt.u32.u64 %r5, %i;
    mul.lo.u32 %r5, %r5, 2654435761;
    xor.b32 %r5, %r5, %r0;
    shl.b64 %from, %i, 2;
    add.u64 %from, %from, %at;
    ld.global.u32 %r6, [%from];
    setp.ne.u32 %q, %r5, %r6;
    @%q add.u32 %r7, %r7, 1;
    add.u64 %i, %i, %step;
    bra NEXT;
DONE:
    setp.ne.u32 %q, %r7, 0;
    @%q red.global.add.u32 [%to], %r7;
    ret;
}

.visible .entry spin(.param .u64 flag)
{
    .reg .pred %p;
    .reg .b32 %r;
    .reg .b64 %at;
    ld.param.u64 %at, [flag];
AGAIN:
    ld.volatile.global.u32 %r, [%at];
    setp.eq.u32 %p, %r, 0;
    @%p bra AGAIN;
    ret;
}

.visible .entry stray()
{
    .reg .b32 %r;
    .reg .b64 %at;
    mov.u64 %at, 64;
    mov.u32 %r, 1;
    st.global.u32 [%at], %r;
    ret;
}
"""


def source(major: int) -> bytes:
    """All kernels that a card of this compute capability (its first number) can run, as the driver takes them."""
    tensor = major >= 8
    head = _HEAD.format(version="7.0" if tensor else "6.0", target="sm_80" if tensor else "sm_50")
    return (head + (_tensor() if tensor else "") + _plain() + _MEMORY).encode() + b"\0"


def _tensor() -> str:
    sums = [", ".join(f"%s{4 * i + j}" for j in range(4)) for i in range(SUMS)]
    return _sums("tensor", "b32", _BF16, 4 * SUMS, [_MMA.format(s=each, k=k) for k in (0, 1) for each in sums])


def _plain() -> str:
    multiply = [f"    fma.rn.f32 %s{i}, %x{k}, %y{k}, %s{i};" for k in (0, 1) for i in range(SUMS)]
    return _sums("plain", "f32", _FP32, SUMS, multiply)


def _sums(name: str, kind: str, constants: dict[str, str], many: int, multiply: list[str]) -> str:
    return _SUMS.format(
        name=name,
        kind=kind,
        many=many,
        constants="\n".join(f"    mov.{kind} {register}, {value};" for register, value in constants.items()),
        zero="\n".join(f"    mov.f32 %s{i}, 0f00000000;" for i in range(many)),
        multiply="\n".join(multiply),
        compare="\n".join(_COMPARE.format(i=i) for i in range(many)),
    )
