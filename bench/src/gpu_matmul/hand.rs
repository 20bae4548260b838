//! The best kernels we know how to write by hand for one shape each: f32, row-major `[m, k]` times `[k, n]`, or weights
//! stored `[n, k]`. They know their sizes are whole tiles, and do nothing but multiply.

use std::fmt::Write;

/// A kernel and how many workgroups it wants.
pub struct Kernel {
    /// Rows and columns of an invocation's tile, or how it differs.
    pub name: String,
    pub text: String,
    pub n_groups: u32,
}

/// The sizes of a product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizes {
    pub m: usize,
    pub k: usize,
    pub n: usize,
}

/// How the right matrix lies in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Right {
    /// `[k, n]`, as in `x @ b`.
    Plain,
    /// `[n, k]`, as weights are most often stored.
    Transposed,
}

/// What every kernel declares.
const HEAD: &str = "\
struct Sizes { m: u32, k: u32, n: u32, none: u32 }
@group(0) @binding(0) var<uniform> sizes: Sizes;
@group(0) @binding(1) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> b: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> y: array<vec4<f32>>;
";

/// Every kernel that could be the best for a shape.
pub fn kernels(sizes: Sizes, right: Right) -> Vec<Kernel> {
    let Sizes { m, k, n } = sizes;
    match right {
        Right::Plain => {
            let tiles = [(16, 2), (16, 4), (8, 2), (8, 1), (1, 1), (1, 2), (1, 4)];
            let fits = |(rows, fours): &(usize, usize)| m.is_multiple_of(*rows) && n.is_multiple_of(fours * 32);
            let sensible = |(rows, _): &(usize, usize)| m < 8 || *rows >= 8;
            let alone = tiles.into_iter().filter(fits).filter(sensible).map(|(rows, fours)| tile(sizes, rows, fours));
            let together = [(32, 2), (32, 1), (8, 4), (8, 2)].into_iter().filter(fits);
            alone.chain(together.map(|(rows, fours)| subgroup(sizes, rows, fours))).collect()
        }
        Right::Transposed => {
            assert!(k.is_multiple_of(16) && m == 1, "only products with one row are written for this layout");
            [(1, 1), (1, 2), (2, 2), (4, 1), (4, 2)].map(|(cols, unroll)| dots(sizes, cols, unroll)).into()
        }
    }
}

/// A tile of `rows` × `4 * fours` results per invocation, k by four, all from registers. Workgroups go down strips of
/// columns, so that what is read of `b` stays in the cache.
fn tile(sizes: Sizes, rows: usize, fours: usize) -> Kernel {
    let mut sums = String::new();
    let mut products = String::new();
    let mut stores = String::new();
    for r in 0..rows {
        let _ = writeln!(products, "        let x{r} = a[(row + {r}u) * k4 + k];");
        for c in 0..fours {
            let _ = writeln!(sums, "    var s{r}_{c} = vec4<f32>();");
            let _ = writeln!(stores, "    y[(row + {r}u) * n4 + col + {c}u] = s{r}_{c};");
        }
    }
    for (i, lane) in ["x", "y", "z", "w"].into_iter().enumerate() {
        for c in 0..fours {
            let _ = writeln!(products, "        let w{i}_{c} = b[(4u * k + {i}u) * n4 + col + {c}u];");
        }
        for r in 0..rows {
            for c in 0..fours {
                let _ = writeln!(products, "        s{r}_{c} += x{r}.{lane} * w{i}_{c};");
            }
        }
    }
    eight_across(sizes, rows, fours, "", [&sums, &products, &stores])
}

/// The same tile, but the eight invocations of a subgroup read the rows of `a` together and hand them to each other.
/// For drivers whose subgroups are eight.
fn subgroup(sizes: Sizes, rows: usize, fours: usize) -> Kernel {
    let (mut starts, mut sums, mut products, mut stores) = (String::new(), String::new(), String::new(), String::new());
    for first in (0..rows).step_by(8) {
        let _ = writeln!(starts, "    let a{first} = (row + {first}u + lane) * k4;");
        let _ = writeln!(products, "        let own{first} = a[a{first} + k];");
    }
    for c in 0..fours {
        for i in 0..4 {
            let _ = writeln!(products, "        let w{i}_{c} = b[(4u * k + {i}u) * n4 + col + {c}u];");
        }
    }
    for r in 0..rows {
        let _ = writeln!(products, "        let x{r} = subgroupBroadcast(own{}, {}u);", r / 8 * 8, r % 8);
        for c in 0..fours {
            let _ = writeln!(sums, "    var s{r}_{c} = vec4<f32>();");
            let _ = writeln!(stores, "    y[(row + {r}u) * n4 + col + {c}u] = s{r}_{c};");
            for (i, step) in ["x", "y", "z", "w"].into_iter().enumerate() {
                let _ = writeln!(products, "        s{r}_{c} += x{r}.{step} * w{i}_{c};");
            }
        }
    }
    sums.insert_str(0, &starts);
    eight_across(sizes, rows, fours, " by subgroup", [&sums, &products, &stores])
}

/// A kernel of workgroups of eight invocations side by side, each with a tile of its own.
fn eight_across(sizes: Sizes, rows: usize, fours: usize, how: &str, [before, products, stores]: [&str; 3]) -> Kernel {
    let text = format!(
        "{HEAD}
@compute @workgroup_size(8)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {{
    let down = sizes.m / {rows}u;
    let col = (group.x / down * 8u + lane) * {fours}u;
    let row = group.x % down * {rows}u;
    let k4 = sizes.k / 4u;
    let n4 = sizes.n / 4u;
{before}    for (var k = 0u; k < k4; k++) {{
{products}    }}
{stores}}}
"
    );
    let name = format!("{rows}x{}{how}", 4 * fours);
    Kernel { name, text, n_groups: (sizes.n / (32 * fours) * (sizes.m / rows)) as u32 }
}

/// `cols` results per invocation: rows of the stored weights times the vector, `4 * unroll` elements per trip.
fn dots(sizes: Sizes, cols: usize, unroll: usize) -> Kernel {
    let (mut sums, mut products, mut stores) = (String::new(), String::new(), String::new());
    for c in 0..cols {
        let _ = writeln!(sums, "    let first{c} = (id.x * {cols}u + {c}u) * k4;\n    var s{c} = vec4<f32>();");
        let _ = writeln!(stores, "    y[id.x * {cols}u + {c}u] = s{c}.x + s{c}.y + s{c}.z + s{c}.w;");
    }
    for i in 0..unroll {
        let _ = writeln!(products, "        let x{i} = a[k + {i}u];");
        for c in 0..cols {
            let _ = writeln!(products, "        s{c} += x{i} * b[first{c} + k + {i}u];");
        }
    }
    let head = HEAD.replace("read_write> y: array<vec4<f32>>", "read_write> y: array<f32>");
    let text = format!(
        "{head}
@compute @workgroup_size(8)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
    let k4 = sizes.k / 4u;
{sums}    for (var k = 0u; k < k4; k += {unroll}u) {{
{products}    }}
{stores}}}
"
    );
    Kernel { name: format!("1x{cols} by {}", 4 * unroll), text, n_groups: (sizes.n / (8 * cols)) as u32 }
}
