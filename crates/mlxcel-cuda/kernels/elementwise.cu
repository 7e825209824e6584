// Elementwise regions: a short program that every thread runs over its elements. Values are rounded to their type
// after each instruction, as the graph says. Registers lie in shared memory, one column for each thread.
#include "base.cuh"

enum { CONSTANT, LOAD, CAST, SELECT, UNARY = 10, BINARY = 30, COMPARE = 50, ACTIVATION = 60 };
enum { NEG, ABS, SIGN, EXP, LOG, LOG1P, SQRT, RSQRT, SIN, COS, TANH, ERF, SIGMOID, FLOOR, CEIL, ROUND, NOT };
enum { ADD, SUB, MUL, DIV, REM, POW, MAX, MIN, AND, OR, XOR, SHL, SHR };
enum { EQ, NE, LT, LE, GT, GE };
enum { RELU, RELU2, SILU, GELU, GELU_TANH, QUICK_GELU, SOFTPLUS };

struct Instruction {
    u8 op;
    // The type of the result, and of the operands where it differs.
    u8 type;
    u8 from;
    u8 a, b, c;
    // The register of the result.
    u8 to;
    u8 unused;
};

struct Input {
    const void* data;
    i64 strides[6];
    u32 type;
    // 0: the same place as the result's, 1: one element for all, 2: by strides.
    u32 mode;
};

struct Elementwise {
    void* out;
    u32 count;
    u32 rank;
    u32 shape[6];
    u32 out_type;
    u32 instructions;
    Input inputs[12];
    i64 constants[24];
    Instruction code[96];
};

struct Narrow {
    typedef float F;
    typedef int I;
    typedef u32 U;
    DEVICE static F load(const void* p, int t, u64 i) { return load_float(p, t, i); }
    DEVICE static void store(void* p, int t, u64 i, F v) { store_float(p, t, i, v); }
    DEVICE static F number(i64 bits) { return (float)__longlong_as_double(bits); }
    DEVICE static F as_float(int v) { return __int_as_float(v); }
    DEVICE static I as_int(float v) { return __float_as_int(v); }
};
struct Wide {
    typedef double F;
    typedef i64 I;
    typedef u64 U;
    DEVICE static F load(const void* p, int t, u64 i) { return load_double(p, t, i); }
    DEVICE static void store(void* p, int t, u64 i, F v) { store_double(p, t, i, v); }
    DEVICE static F number(i64 bits) { return __longlong_as_double(bits); }
    DEVICE static F as_float(i64 v) { return __longlong_as_double(v); }
    DEVICE static I as_int(double v) { return __double_as_longlong(v); }
};

template <class I> DEVICE I wrap(int type, I v) {
    switch (type) {
    case BOOL: return v != 0;
    case U8: return (u8)v;
    case U16: return (u16)v;
    case U32: return sizeof(I) == 8 ? (I)(u32)v : v;
    case I8: return (i8)v;
    case I16: return (short)v;
    case I32: return (int)v;
    default: return v;
    }
}
template <class F> DEVICE F rounded(int type, F v) {
    switch (type) {
    case F8E4M3: return decode_f8<3, 7, false>(encode_f8<3, 7, false>(v));
    case F8E5M2: return decode_f8<2, 15, true>(encode_f8<2, 15, true>(v));
    case F16: return to_float(from_float<f16>((float)v));
    case BF16: return to_float(from_float<bf16>((float)v));
    case F32: return (float)v;
    default: return v;
    }
}

DEVICE float sigmoid(float a) { return 1.f / (1.f + expf(-a)); }
DEVICE double sigmoid(double a) { return 1. / (1. + exp(-a)); }

template <class F> DEVICE F unary(int op, F a) {
    switch (op) {
    case NEG: return -a;
    case ABS: return a < 0 ? -a : (a == 0 ? (F)0 : a);
    case SIGN: return a > 0 ? (F)1 : a < 0 ? (F)-1 : a;
    case EXP: return exp(a);
    case LOG: return log(a);
    case LOG1P: return log1p(a);
    case SQRT: return sqrt(a);
    case RSQRT: return (F)1 / sqrt(a);
    case SIN: return sin(a);
    case COS: return cos(a);
    case TANH: return tanh(a);
    case ERF: return erf(a);
    case SIGMOID: return sigmoid(a);
    case FLOOR: return floor(a);
    case CEIL: return ceil(a);
    default: return rint(a);
    }
}
template <class F> DEVICE F activation(int op, F a) {
    switch (op) {
    case RELU: return a != a ? a : a > 0 ? a : (F)0;
    case RELU2: return a != a ? a : a > 0 ? a * a : (F)0;
    case SILU: return a * sigmoid(a);
    case GELU: return a * (F)0.5 * (erf(a * (F)0.70710678118654752440) + (F)1);
    case GELU_TANH: return a * (F)0.5 * (tanh((a + a * a * a * (F)0.044715) * (F)0.79788456080286535588) + (F)1);
    case QUICK_GELU: return a * sigmoid(a * (F)1.702);
    default: return (a > 0 ? a : a != a ? a : (F)0) + log1p(exp(a < 0 ? a : -a));
    }
}
template <class F> DEVICE F binary(int op, F a, F b) {
    switch (op) {
    case ADD: return a + b;
    case SUB: return a - b;
    case MUL: return a * b;
    case DIV: return a / b;
    case REM: return fmod(a, b);
    case POW: return pow(a, b);
    case MAX: return a != a ? a : b != b ? b : a > b ? a : b;
    default: return a != a ? a : b != b ? b : a < b ? a : b;
    }
}
template <class R> DEVICE typename R::I unary_int(int op, int type, typename R::I a) {
    typedef typename R::I I;
    bool is_unsigned = type <= U64;
    switch (op) {
    case NEG: return (I)(0 - (typename R::U)a);
    case ABS: return is_unsigned ? a : a < 0 ? (I)(0 - (typename R::U)a) : a;
    case SIGN: return is_unsigned ? (a != 0) : (a > 0) - (a < 0);
    default: return type == BOOL ? (I)(a == 0) : ~a;
    }
}
template <class R> DEVICE typename R::I binary_int(int op, int type, typename R::I a, typename R::I b) {
    typedef typename R::I I;
    typedef typename R::U U;
    bool is_unsigned = type == U32 || type == U64;
    switch (op) {
    case ADD: return (I)((U)a + (U)b);
    case SUB: return (I)((U)a - (U)b);
    case MUL: return (I)((U)a * (U)b);
    case DIV:
        if (b == 0) return 0;
        if (is_unsigned) return (I)((U)a / (U)b);
        return b == -1 ? (I)(0 - (U)a) : a / b;
    case REM:
        if (b == 0) return 0;
        if (is_unsigned) return (I)((U)a % (U)b);
        return b == -1 ? 0 : a % b;
    case MAX: return is_unsigned ? ((U)a > (U)b ? a : b) : (a > b ? a : b);
    case MIN: return is_unsigned ? ((U)a < (U)b ? a : b) : (a < b ? a : b);
    case AND: return a & b;
    case OR: return a | b;
    case XOR: return a ^ b;
    case SHL: return (U)b >= sizeof(I) * 8 ? 0 : (I)((U)a << b);
    default:
        if ((U)b >= 64) return 0;
        if ((U)b >= sizeof(I) * 8) return !is_unsigned && a < 0 ? -1 : 0;
        return is_unsigned ? (I)((U)a >> b) : a >> b;
    }
}
template <class T> DEVICE bool compare(int op, T a, T b) {
    switch (op) {
    case EQ: return a == b;
    case NE: return a != b;
    case LT: return a < b;
    case LE: return a <= b;
    case GT: return a > b;
    default: return a >= b;
    }
}

template <class R> DEVICE typename R::I cast(int from, int to, typename R::I bits) {
    typedef typename R::F F;
    typedef typename R::I I;
    if (is_float(to)) {
        F v;
        if (is_float(from)) v = R::as_float(bits);
        else if (from == U64) v = (F)(u64)bits;
        else if (from == U32) v = (F)(u32)bits;
        else v = (F)bits;
        return R::as_int(rounded(to, v));
    }
    if (!is_float(from)) return wrap(to, bits);
    F v = R::as_float(bits);
    if (to == BOOL) return v != 0;
    if (v != v) return 0;
    if (to == U64) return v <= 0 ? 0 : v >= (F)18446744073709551615.0 ? (I)~0ull : (I)(u64)v;
    i64 whole = v >= (F)9223372036854775807.0 ? 0x7fffffffffffffffll
                : v <= (F)-9223372036854775808.0 ? (i64)0x8000000000000000ull : (i64)v;
    return (I)wrap<i64>(to, whole);
}

template <class R> DEVICE typename R::I step(const Instruction& in, typename R::I a, typename R::I b, typename R::I c) {
    typedef typename R::I I;
    if (in.op == CAST) return cast<R>(in.from, in.type, a);
    if (in.op == SELECT) return a ? b : c;
    if (in.op >= ACTIVATION) return R::as_int(rounded(in.type, activation(in.op - ACTIVATION, R::as_float(a))));
    if (in.op >= COMPARE) {
        int op = in.op - COMPARE;
        if (is_float(in.from)) return compare(op, R::as_float(a), R::as_float(b));
        if (in.from == U64 || in.from == U32) return compare<typename R::U>(op, a, b);
        return compare<I>(op, a, b);
    }
    bool floats = is_float(in.type);
    if (in.op >= BINARY) {
        if (floats) return R::as_int(rounded(in.type, binary(in.op - BINARY, R::as_float(a), R::as_float(b))));
        return wrap(in.type, binary_int<R>(in.op - BINARY, in.type, a, b));
    }
    if (floats) return R::as_int(rounded(in.type, unary(in.op - UNARY, R::as_float(a))));
    return wrap(in.type, unary_int<R>(in.op - UNARY, in.type, a));
}

template <class R> DEVICE void run(const Elementwise& p) {
    typedef typename R::I I;
    extern __shared__ __align__(16) u8 memory[];
    I* registers = (I*)memory;
    const u32 n = blockDim.x, me = threadIdx.x;
    wait_for_previous();
    for (u64 at = (u64)blockIdx.x * n + me; at < p.count; at += (u64)gridDim.x * n) {
        u32 i = (u32)at;
        for (u32 k = 0; k < p.instructions; k++) {
            const Instruction& in = p.code[k];
            I result;
            if (in.op == CONSTANT) {
                i64 bits = p.constants[in.a];
                result = is_float(in.type) ? R::as_int(R::number(bits)) : (I)bits;
            } else if (in.op == LOAD) {
                const Input& x = p.inputs[in.a];
                u64 place = i;
                if (x.mode == 1) place = 0;
                if (x.mode == 2) {
                    u32 rest = i;
                    i64 sum = 0;
                    for (int d = p.rank - 1; d > 0; d--) {
                        u32 q = rest / p.shape[d];
                        sum += (i64)(rest - q * p.shape[d]) * x.strides[d];
                        rest = q;
                    }
                    place = sum + (i64)rest * x.strides[0];
                }
                result = is_float(x.type) ? R::as_int(R::load(x.data, x.type, place)) : (I)load_int(x.data, x.type, place);
            } else {
                result = step<R>(in, registers[in.a * n + me], registers[in.b * n + me], registers[in.c * n + me]);
            }
            registers[p.code[k].to * n + me] = result;
        }
        I last = registers[p.code[p.instructions - 1].to * n + me];
        if (is_float(p.out_type)) R::store(p.out, p.out_type, i, R::as_float(last));
        else store_int(p.out, p.out_type, i, last);
    }
}

KERNEL elementwise_narrow(const __grid_constant__ Elementwise p) { run<Narrow>(p); }
KERNEL elementwise_wide(const __grid_constant__ Elementwise p) { run<Wide>(p); }
