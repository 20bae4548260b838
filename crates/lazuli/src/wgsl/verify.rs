//! Refuses passes that a device would not run as they are written. Looks only at what was printed: it shares nothing with
//! what decides how a launch is cut.

use super::Pass;
use crate::target::GpuTarget;

/// Says what is wrong with a pass on a device, if anything.
pub fn verify(pass: &Pass, target: &GpuTarget) -> Result<(), String> {
    let main = pass.text.split("fn main(").nth(1).unwrap_or_default();
    let has_loop = ["for (", "while (", "loop {"].iter().any(|word| main.contains(word));
    if has_loop && pass.iterations == 0 {
        return Err(format!("{}: a loop whose iterations were not counted", pass.label));
    }
    if pass.binds.len() > target.max_bindings || pass.binds.iter().any(|bind| bind.len > target.max_binding_bytes) {
        let (n, max, window) = (pass.binds.len(), target.max_bindings, target.max_binding_bytes);
        return Err(format!("{}: {n} bindings, of which this device has {max}, of {window} bytes each", pass.label));
    }
    let shared = shared_bytes(&pass.text)?;
    if shared > target.max_shared_bytes {
        let max = target.max_shared_bytes;
        return Err(format!("{}: {shared} bytes of workgroup memory, of which this device has {max}", pass.label));
    }
    if pass.iterations > target.max_iterations {
        let (iterations, max) = (pass.iterations, target.max_iterations);
        return Err(format!(
            "{}: {iterations} loop iterations of one invocation, of which this device makes {max}",
            pass.label
        ));
    }
    Ok(())
}

/// Bytes of all workgroup memory that a text declares, as WGSL lays it out.
fn shared_bytes(text: &str) -> Result<usize, String> {
    let declarations = text.lines().filter_map(|line| line.trim().strip_prefix("var<workgroup>"));
    let size = |declaration: &str| {
        let ty = declaration.split_once(':').and_then(|(_, ty)| ty.trim().strip_suffix(';'));
        ty.and_then(|ty| size_of(ty.trim())).ok_or(format!("workgroup memory of unknown size:{declaration}"))
    };
    // Each variable starts at a multiple of 16: drivers count it so.
    declarations.map(|declaration| Ok(size(declaration)?.next_multiple_of(16))).sum()
}

/// Bytes of a type: a number, a vector of four or two, or an array of those; None of anything else.
fn size_of(ty: &str) -> Option<usize> {
    let inside = |start: &str| ty.strip_prefix(start)?.strip_suffix('>');
    if let Some((element, n)) = inside("array<").and_then(|ty| ty.rsplit_once(',')) {
        return Some(size_of(element.trim())? * n.trim().trim_end_matches('u').parse::<usize>().ok()?);
    }
    if let Some(element) = inside("atomic<") {
        return size_of(element);
    }
    match (inside("vec4<"), inside("vec2<")) {
        (Some(element), _) => Some(4 * size_of(element)?),
        (_, Some(element)) => Some(2 * size_of(element)?),
        _ => ["f32", "u32", "i32"].contains(&ty).then_some(4),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workgroup_memory_is_what_is_declared() {
        let text = "var<workgroup> sh_a: array<array<vec4<f32>, 32>, 16>;\n    var<workgroup> sh_n: atomic<u32>;\n\
                    var<workgroup> sh_b: array<vec2<u32>, 3u>;\nvar<private> x: array<f32, 100>;\n";
        assert_eq!(shared_bytes(text), Ok(32 * 16 * 16 + 16 + 32));
        assert!(shared_bytes("var<workgroup> sh: Tile;").is_err());
    }
}
