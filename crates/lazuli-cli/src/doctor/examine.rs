//! Examines one device: what it is, every form, then speed. Each finding is handed over as soon as it is there.

use std::time::Instant;

use indicatif::ProgressBar;
use lazuli::{Device, DeviceKind};
use lazuli_check::Form;

use super::report::{DeviceReport, FormReport};
use super::speed;

/// Examines a device. `note` changes its report.
pub fn examine(
    device: &Device,
    forms: &[Form],
    measures: bool,
    bar: &ProgressBar,
    note: impl Fn(&dyn Fn(&mut DeviceReport)),
) {
    let start = Instant::now();
    let name = &device.info().name;
    let is_cold = is_cold(device);
    bar.set_length(forms.len() as u64 + if measures { speed::N_STEPS } else { 0 });
    bar.set_position(0);
    let compiling = if is_cold { "compiling and checking" } else { "checking" };
    if is_cold {
        let line = format!("{name}: its driver has to compile every kernel first, which may take minutes");
        if bar.is_hidden() { eprintln!("{line}") } else { bar.println(line) }
    }
    match lazuli_check::on(device) {
        Ok(_subject) => {
            for form in forms {
                bar.set_message(format!("{name}: {compiling} {}", form.name));
                let begin = Instant::now();
                let verdict = form.check();
                let form = FormReport { name: form.name, verdict, seconds: begin.elapsed().as_secs_f64() };
                note(&|report| report.forms.push(form.clone()));
                bar.inc(1);
            }
        }
        Err(error) => note(&|report| report.error = Some(error.to_string())),
    }
    if measures {
        let measured = speed::measure(device, |what| {
            bar.set_message(format!("{name}: measuring {what}"));
            bar.inc(1);
        });
        match measured {
            Ok(speeds) => note(&|report| report.speeds = Some(speeds.clone())),
            Err(error) => note(&|report| report.error = Some(error.to_string())),
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    note(&|report| {
        report.seconds = Some(seconds);
        report.is_cold = is_cold;
        report.n_compiled = device.stats().pipelines_compiled;
    });
}

/// Whether no earlier program left compiled kernels for this device.
fn is_cold(device: &Device) -> bool {
    device.info().kind != DeviceKind::Cpu && !lazuli::gpu::compiled_bytes(device).is_ok_and(|n| n > 0)
}
