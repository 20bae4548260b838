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
    if pass.iterations > target.max_iterations {
        let (iterations, max) = (pass.iterations, target.max_iterations);
        return Err(format!(
            "{}: {iterations} loop iterations of one invocation, of which this device makes {max}",
            pass.label
        ));
    }
    Ok(())
}
