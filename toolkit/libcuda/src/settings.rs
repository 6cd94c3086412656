//! Settings from environment variables.

use emulator::LaunchOptions;
use emulator::driver::DeviceOptions;
use std::fmt;
use std::path::PathBuf;
use std::sync::OnceLock;

/// The prefix of all variable names.
pub const PREFIX: &str = "QUIRE_EMULATOR_";

/// The supported kinds of devices and their compute capabilities.
const DEVICES: [(&str, (u32, u32)); 6] =
    [("sm_80", (8, 0)), ("sm_86", (8, 6)), ("sm_87", (8, 7)), ("sm_89", (8, 9)), ("sm_90", (9, 0)), ("sm_90a", (9, 0))];
/// The most devices that can be emulated.
const MOST_DEVICES: usize = 16;
/// The accepted values of the checks variable, and its default.
const CHECKS: &str =
    "`all`, `none`, or a comma-separated list of `uninitialised`, `copies`, `races` and `global-races`";
const DEFAULT_CHECKS: &str = "uninitialised,races,global-races";

/// Settings from environment variables.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// The properties of the devices.
    pub device: DeviceOptions,
    /// The launch options, which include the checks.
    pub launches: LaunchOptions,
    /// The file that reports are appended to, or `None` for standard error.
    pub report: Option<PathBuf>,
    /// The exit code of a process with faults. 0 keeps the program's own exit code.
    pub exit_code: u8,
}

/// The settings of the process, set when the driver is initialised.
static SETTINGS: OnceLock<Settings> = OnceLock::new();

/// Stores the settings of the process. Later calls have no effect.
pub fn store(settings: Settings) {
    let _ = SETTINGS.set(settings);
}

/// The settings of the process, or `None` before the driver is initialised.
pub fn current() -> Option<&'static Settings> {
    SETTINGS.get()
}

/// An unknown variable, or one with an invalid value.
#[derive(Debug, PartialEq, Eq)]
pub struct WrongSetting {
    name: String,
    value: String,
    /// The accepted values.
    wanted: String,
}

impl fmt::Display for WrongSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={} is invalid: {}", self.name, self.value, self.wanted)
    }
}

impl Settings {
    /// Reads settings from variables whose names begin with [`PREFIX`]. Empty values are ignored.
    pub fn read(variables: impl Iterator<Item = (String, String)>) -> Result<Self, WrongSetting> {
        let mut settings = Self::default();
        settings.launches.poison = true;
        settings.check(DEFAULT_CHECKS);
        for (name, value) in variables.filter(|(_, value)| !value.is_empty()) {
            let set = settings.set(name.strip_prefix(PREFIX).unwrap_or(&name), &value);
            set.map_err(|wanted| WrongSetting { name, value, wanted })?;
        }
        Ok(settings)
    }

    /// Applies one variable. If its value is invalid, returns the accepted values.
    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "DEVICE" => {
                let found = DEVICES.iter().find(|(device, _)| *device == value);
                let names = DEVICES.map(|(device, _)| device).join(", ");
                self.device.capability = found.ok_or_else(|| format!("the supported devices are {names}"))?.1;
            }
            "DEVICES" => {
                let count = value.parse().ok().filter(|count| (1..=MOST_DEVICES).contains(count));
                self.device.devices =
                    count.ok_or_else(|| format!("the number of devices must be from 1 to {MOST_DEVICES}"))?;
            }
            "CHECKS" => self.check(value).ok_or_else(|| format!("the checks must be {CHECKS}"))?,
            "SEED" => {
                let wanted = || "the seed must be a number, where 0 is the natural order".to_owned();
                self.launches.seed = value.parse().map_err(|_| wanted())?;
            }
            "INSTRUCTION_LIMIT" => {
                let limit = value.parse().ok().filter(|&limit| limit > 0);
                self.launches.instruction_limit = limit.ok_or("the limit is a number of warp instructions")?;
            }
            "REPORT" => self.report = Some(value.into()),
            "EXIT_CODE" => {
                self.exit_code =
                    value.parse().map_err(|_| "the exit code must be a number from 0 to 255".to_owned())?;
            }
            _ => return Err("there is no such variable (the README of quire-libcuda lists all)".to_owned()),
        }
        Ok(())
    }

    /// Sets which checks are enabled, or returns `None` if a name is unknown.
    fn check(&mut self, value: &str) -> Option<()> {
        let launches = &mut self.launches;
        let all = value == "all";
        (launches.check_initialised, launches.check_copies) = (all, all);
        (launches.check_races, launches.check_global_races) = (all, all);
        if all || value == "none" {
            return Some(());
        }
        for check in value.split(',') {
            match check {
                "uninitialised" => launches.check_initialised = true,
                "copies" => (launches.check_initialised, launches.check_copies) = (true, true),
                "races" => launches.check_races = true,
                "global-races" => launches.check_global_races = true,
                _ => return None,
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed unwrap is a failed test
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Settings, String> {
        let named = |(name, value): &(&str, &str)| (format!("{PREFIX}{name}"), (*value).to_owned());
        Settings::read(variables.iter().map(named)).map_err(|wrong| wrong.to_string())
    }

    #[test]
    fn each_variable_sets_its_option() {
        let settings =
            read(&[("DEVICE", "sm_80"), ("DEVICES", "3"), ("SEED", "7"), ("EXIT_CODE", "9"), ("REPORT", "x")]).unwrap();
        assert_eq!((settings.device.capability, settings.device.devices), ((8, 0), 3));
        assert_eq!((settings.launches.seed, settings.exit_code), (7, 9));
        assert_eq!(settings.report, Some("x".into()));
        let limit = |variables| read(variables).unwrap().launches.instruction_limit;
        assert_eq!(limit(&[("INSTRUCTION_LIMIT", "17179869184")]), 1 << 34);
        assert_eq!(limit(&[]), LaunchOptions::default().instruction_limit);
        assert_eq!(read(&[]).unwrap(), read(&[("DEVICE", ""), ("CHECKS", DEFAULT_CHECKS)]).unwrap());
        assert_eq!(read(&[("DEVICE", "sm_90a")]).unwrap().device.capability, (9, 0));
    }

    #[test]
    fn only_the_named_checks_are_enabled() {
        let checks = |value| {
            let launches = read(&[("CHECKS", value)]).unwrap().launches;
            [launches.check_initialised, launches.check_copies, launches.check_races, launches.check_global_races]
        };
        assert_eq!(checks("none"), [false; 4]);
        assert_eq!(checks("all"), [true; 4]);
        assert_eq!(checks("global-races,uninitialised"), [true, false, false, true]);
        assert_eq!(checks("copies"), [true, true, false, false]);
    }

    #[test]
    fn an_error_names_the_accepted_values() {
        assert_eq!(
            read(&[("DEVICE", "sm_70")]).unwrap_err(),
            "QUIRE_EMULATOR_DEVICE=sm_70 is invalid: the supported devices are sm_80, sm_86, sm_87, sm_89, sm_90, sm_90a"
        );
        for (name, value) in [
            ("DEVICES", "0"),
            ("DEVICES", "17"),
            ("SEED", "x"),
            ("EXIT_CODE", "256"),
            ("INSTRUCTION_LIMIT", "0"),
            ("INSTRUCTION_LIMIT", "many"),
            ("CHECKS", "race"),
            ("SEEDS", "1"),
        ] {
            assert!(read(&[(name, value)]).unwrap_err().starts_with(&format!("{PREFIX}{name}={value} is invalid")));
        }
    }
}
