//! The kernels themselves: WGSL for exactly one workload and its sizes, tuned for drivers that run on the CPU. Those
//! take invocations eight at a time and read memory lane by lane, so four values are read at once, an invocation does
//! much, and none waits for another.

use std::fmt::Write;

use crate::workload::{CHAIN_PAIRS, LAYER_NORM_EPS, Work, chain_scalar};

/// A dispatch as text.
pub struct Kernel {
    pub text: String,
    /// What is bound, in order.
    pub memory: Vec<Memory>,
    pub n_groups: usize,
    /// Values of scratch memory that it needs.
    pub n_scratch: usize,
}

/// What a binding is.
#[derive(Clone, Copy)]
pub enum Memory {
    Input(usize),
    Scratch,
    Y,
}

/// The dispatches of a workload; None if nobody has written them.
pub fn kernels(work: Work) -> Option<Vec<Kernel>> {
    Some(match work {
        Work::Copy { n } => vec![map(1, n, "y[i] = x0[i];")],
        Work::Chain3 { n } => vec![map(3, n, "y[i] = (x0[i] + x1[i]) * 5.0 - x2[i];")],
        Work::Chain100 { n } => vec![chain100(n)],
        Work::Softmax { rows, cols } => vec![softmax(rows, cols)],
        Work::LayerNorm { rows, cols } => vec![layer_norm(rows, cols)],
        Work::Sum { n } => sum(n),
        Work::SumAxis { axis: 0, rows, cols } => sum_columns(rows, cols),
        Work::SumAxis { rows, cols, .. } => vec![sum_rows(rows, cols)],
        Work::AddTransposed { n } => vec![add_transposed(n)],
        Work::Read { .. } | Work::Peak { .. } | Work::Matmul { .. } => return None,
        Work::Attention(_) | Work::Conv(_) | Work::Encoder(_) | Work::Heat { .. } => return None,
    })
}

/// Declarations of the inputs, as vectors of four, and of the result.
fn declare(n_inputs: usize, y: &str) -> String {
    let mut text = String::new();
    for i in 0..n_inputs {
        let _ = writeln!(text, "@group(0) @binding({i}) var<storage, read> x{i}: array<vec4<f32>>;");
    }
    let _ = writeln!(text, "@group(0) @binding({n_inputs}) var<storage, read_write> y: array<{y}>;");
    text
}

/// The inputs, then one more.
fn bound(n_inputs: usize, last: Memory) -> Vec<Memory> {
    (0..n_inputs).map(Memory::Input).chain([last]).collect()
}

/// An elementwise kernel: `body` makes the four values at `i`. Every invocation does so twice.
fn map(n_inputs: usize, n: usize, body: &str) -> Kernel {
    let text = format!(
        "{}
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
    {{ let i = id.x * 2u; {body} }}
    {{ let i = id.x * 2u + 1u; {body} }}
}}",
        declare(n_inputs, "vec4<f32>")
    );
    Kernel { text, memory: bound(n_inputs, Memory::Y), n_groups: n / 8 / 256, n_scratch: 0 }
}

fn chain100(n: usize) -> Kernel {
    let mut body = String::from("let t = x1[i]; var v = x0[i];\n");
    for pair_idx in 0..CHAIN_PAIRS {
        let _ = writeln!(body, "    v = v * {:?} + t;", chain_scalar(pair_idx));
    }
    body.push_str("    y[i] = v;");
    map(2, n, &body)
}

/// A kernel of one invocation per row.
fn by_row(n_inputs: usize, rows: usize, y: &str, body: &str) -> Kernel {
    let text = format!(
        "{}
@compute @workgroup_size(8)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
    let row = id.x;
{body}
}}",
        declare(n_inputs, y)
    );
    Kernel { text, memory: bound(n_inputs, Memory::Y), n_groups: rows / 8, n_scratch: 0 }
}

fn softmax(rows: usize, cols: usize) -> Kernel {
    let n = cols / 4;
    let body = format!(
        "    let first = row * {n}u;
    var m4 = x0[first];
    for (var j = 0u; j < {n}u; j += 4u) {{
        let at = first + j;
        m4 = max(m4, max(max(x0[at], x0[at + 1u]), max(x0[at + 2u], x0[at + 3u])));
    }}
    let m = max(max(m4.x, m4.y), max(m4.z, m4.w));
    var s4 = vec4(0.0);
    for (var j = 0u; j < {n}u; j += 4u) {{
        let at = first + j;
        s4 += (exp(x0[at] - m) + exp(x0[at + 1u] - m)) + (exp(x0[at + 2u] - m) + exp(x0[at + 3u] - m));
    }}
    let scale = 1.0 / ((s4.x + s4.y) + (s4.z + s4.w));
    for (var j = 0u; j < {n}u; j++) {{
        let at = first + j;
        y[at] = exp(x0[at] - m) * scale;
    }}"
    );
    by_row(1, rows, "vec4<f32>", &body)
}

fn layer_norm(rows: usize, cols: usize) -> Kernel {
    let n = cols / 4;
    let body = format!(
        "    let first = row * {n}u;
    var s4 = vec4(0.0);
    for (var j = 0u; j < {n}u; j += 4u) {{
        let at = first + j;
        s4 += (x0[at] + x0[at + 1u]) + (x0[at + 2u] + x0[at + 3u]);
    }}
    let mean = ((s4.x + s4.y) + (s4.z + s4.w)) / {cols}.0;
    var v4 = vec4(0.0);
    for (var j = 0u; j < {n}u; j += 4u) {{
        let at = first + j;
        let a = x0[at] - mean;
        let b = x0[at + 1u] - mean;
        let c = x0[at + 2u] - mean;
        let d = x0[at + 3u] - mean;
        v4 += (a * a + b * b) + (c * c + d * d);
    }}
    let scale = inverseSqrt(((v4.x + v4.y) + (v4.z + v4.w)) / {cols}.0 + {LAYER_NORM_EPS:?});
    for (var j = 0u; j < {n}u; j++) {{
        let at = first + j;
        y[at] = (x0[at] - mean) * scale * x1[j] + x2[j];
    }}"
    );
    by_row(3, rows, "vec4<f32>", &body)
}

fn sum_rows(rows: usize, cols: usize) -> Kernel {
    let n = cols / 4;
    let body = format!(
        "    let first = row * {n}u;
    var s4 = vec4(0.0);
    for (var j = 0u; j < {n}u; j += 4u) {{
        let at = first + j;
        s4 += (x0[at] + x0[at + 1u]) + (x0[at + 2u] + x0[at + 3u]);
    }}
    y[row] = (s4.x + s4.y) + (s4.z + s4.w);"
    );
    by_row(1, rows, "f32", &body)
}

/// Blocks of four by four per invocation, turned in registers; tiles of 32 by 32 per workgroup, so that what is read
/// along rows and along columns shares cache lines.
fn add_transposed(n: usize) -> Kernel {
    let each = |line: &dyn Fn(usize) -> String| (0..4).map(line).collect::<Vec<_>>().join("\n    ");
    let text = format!(
        "{}
@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {{
    let row = group.x / {tiles}u * 8u + lane / 8u;
    let col = group.x % {tiles}u * 8u + lane % 8u;
    {}
    {}
    {}
}}",
        declare(1, "vec4<f32>"),
        each(&|k| format!("let a{k} = x0[(row * 4u + {k}u) * {}u + col];", n / 4)),
        each(&|k| format!("let b{k} = x0[(col * 4u + {k}u) * {}u + row];", n / 4)),
        each(&|k| {
            let turned = ["x", "y", "z", "w"][k];
            let column = format!("vec4(b0.{turned}, b1.{turned}, b2.{turned}, b3.{turned})");
            format!("y[(row * 4u + {k}u) * {}u + col] = a{k} + {column};", n / 4)
        }),
        tiles = n / 32,
    );
    Kernel { text, memory: bound(1, Memory::Y), n_groups: (n / 32) * (n / 32), n_scratch: 0 }
}

/// Sums of rows of a matrix that is not one, then the sum of those.
fn sum(n: usize) -> Vec<Kernel> {
    const COLS: usize = 1024;
    let mut first = sum_rows(n / COLS, COLS);
    first.memory[1] = Memory::Scratch;
    first.n_scratch = n / COLS;
    let mut last = sum_rows(8, n / COLS);
    last.text = last.text.replace("let row = id.x;", "let row = 0u;\n    if (id.x > 0u) { return; }");
    last.memory[0] = Memory::Scratch;
    last.n_groups = 1;
    vec![first, last]
}

/// Blocks of rows that all columns go through before the next block's pages are touched, eight fours of columns per
/// invocation; then the sums of the blocks.
fn sum_columns(rows: usize, cols: usize) -> Vec<Kernel> {
    const BESIDE: usize = 8;
    const BLOCK: usize = 256;
    let pass = |rows: usize, blocks: usize| {
        let (wide, n) = (cols / (4 * BESIDE), cols / 4);
        let each = |line: &dyn Fn(usize) -> String| (0..BESIDE).map(line).collect::<Vec<_>>().join("\n        ");
        let text = format!(
            "{}
@compute @workgroup_size(8)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
    let block = id.x / {wide}u;
    let col = id.x % {wide}u * {BESIDE}u;
        {}
    for (var row = block * {rows}u; row < (block + 1u) * {rows}u; row++) {{
        let at = row * {n}u + col;
        {}
    }}
    let to = block * {n}u + col;
        {}
}}",
            declare(1, "vec4<f32>"),
            each(&|k| format!("var s{k} = vec4(0.0);")),
            each(&|k| format!("s{k} += x0[at + {k}u];")),
            each(&|k| format!("y[to + {k}u] = s{k};")),
        );
        Kernel { text, memory: bound(1, Memory::Y), n_groups: wide * blocks / 8, n_scratch: blocks * cols }
    };
    let blocks = rows / BLOCK;
    let (mut first, mut last) = (pass(BLOCK, blocks), pass(blocks, 1));
    first.memory[1] = Memory::Scratch;
    last.memory[0] = Memory::Scratch;
    vec![first, last]
}
