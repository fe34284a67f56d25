//! The whole table: every service with its destinations, and how to read it while others write.

use crate::connection::Ipvs;
use crate::destination::{Destination, DestinationEntry};
use crate::error::Error;
use crate::request::Request;
use crate::service::{Service, ServiceEntry};

/// A service and its destinations, as the kernel reports them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableEntry {
    /// The service.
    pub service: ServiceEntry,
    /// Its destinations, by key.
    pub destinations: Vec<DestinationEntry>,
}

impl TableEntry {
    /// What was configured, without what is counted.
    fn configuration(&self) -> (&Service, impl Iterator<Item = &Destination>) {
        (&self.service.service, self.destinations.iter().map(|entry| &entry.destination))
    }
}

/// Whether two readings have the same services, destinations and options; counters are not looked at.
#[must_use]
pub fn same_configuration(one: &[TableEntry], other: &[TableEntry]) -> bool {
    let same = |(one, other): (&TableEntry, &TableEntry)| {
        let ((service, mut destinations), (other_service, other_destinations)) =
            (one.configuration(), other.configuration());
        service == other_service && destinations.by_ref().eq(other_destinations)
    };
    one.len() == other.len() && one.iter().zip(other).all(same)
}

impl Ipvs {
    /// Reads all services and their destinations, by key: one dump, and one more for each service, which is 20 to 200 ms
    /// a thousand. For a cheap look whether anything changed see [`proc`](crate::proc).
    ///
    /// # Errors
    /// As [`Ipvs::services`].
    pub fn table(&mut self) -> Result<Vec<TableEntry>, Error> {
        let mut services = self.services()?;
        services.sort_by_key(|entry| entry.service.key);
        let mut table = Vec::with_capacity(services.len());
        for service in services {
            let mut destinations = self.destinations(&service.service.key)?;
            destinations.sort_by_key(|entry| entry.destination.key);
            table.push(TableEntry { service, destinations });
        }
        Ok(table)
    }

    /// Reads the table until two readings in a row have the same configuration. A kernel's dump loses entries without a
    /// word when another writer deletes meanwhile, in whatever network namespace; before anything is repaired by what was
    /// read, read it so.
    ///
    /// # Errors
    /// [`Error::Unsettled`] if it was different each of `attempts` times; else as [`Ipvs::services`].
    pub fn settled_table(&mut self, attempts: usize) -> Result<Vec<TableEntry>, Error> {
        let mut last = self.table()?;
        for _ in 1..attempts {
            let next = self.table()?;
            if same_configuration(&last, &next) {
                return Ok(next);
            }
            last = next;
        }
        Err(Error::Unsettled { request: Request::ListServices, attempts })
    }
}
