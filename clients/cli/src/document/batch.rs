//! Operations for one Apply, each with its place in a file.

use prost::Message as _;
use vipd_client::v1::operation::Operation as Op;
use vipd_client::v1::{
    Operation, PatchEndpointsRequest, SetEndpointsRequest, SetSchedulerRequest, UpsertServiceRequest,
};

use crate::text::key;

/// Operations, in the order of the documents.
#[derive(Default)]
pub(crate) struct Batch {
    operations: Vec<Operation>,
    /// For each operation: the document, and what it is about there.
    places: Vec<String>,
}

impl Batch {
    pub(super) fn push(&mut self, place: String, operation: Operation) {
        self.places.push(place);
        self.operations.push(operation);
    }

    pub(crate) fn len(&self) -> usize {
        self.operations.len()
    }

    pub(crate) fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// Several batches, none larger than this unless a single service is. What is about one service stays together.
    pub(crate) fn split(self, most: usize, bytes: usize) -> Vec<Self> {
        let (mut batches, mut size) = (vec![Self::default()], 0);
        let mut before = String::new();
        for (operation, place) in self.operations.into_iter().zip(self.places) {
            let subject = operation.operation.as_ref().map(subject).unwrap_or_default();
            let last = batches.last().map_or(0, Self::len);
            if subject != before && last > 0 && (last + 2 > most || size + operation.encoded_len() > bytes) {
                batches.push(Self::default());
                size = 0;
            }
            size += operation.encoded_len();
            before = subject;
            if let Some(batch) = batches.last_mut() {
                batch.push(place, operation);
            }
        }
        batches
    }

    /// The services that are written, each once, in the order of the documents.
    pub(crate) fn services(&self) -> Vec<String> {
        let mut keys: Vec<String> = Vec::new();
        for op in self.operations.iter().filter_map(|operation| operation.operation.as_ref()) {
            let subject = subject(op);
            // What is about one service stands side by side.
            if keys.last() != Some(&subject) {
                keys.push(subject);
            }
        }
        keys
    }

    /// `operations[3].set_endpoints.endpoints[0].port` as the reader of the file knows it.
    pub(crate) fn translate(&self, field: &str) -> Option<String> {
        let (index, rest) = field.strip_prefix("operations[")?.split_once(']')?;
        let place = self.places.get(index.parse::<usize>().ok()?)?;
        let inside = rest.trim_start_matches('.').split_once('.').map_or("", |(_, inside)| inside);
        Some(format!("{place}: {inside}").trim_end_matches([':', ' ']).to_owned())
    }
}

/// Which service an operation is about, as `key` writes it.
fn subject(op: &Op) -> String {
    match op {
        Op::UpsertService(UpsertServiceRequest { service: Some(service), .. }) => key(&service.owner, &service.name),
        Op::UpsertService(_) => String::new(),
        Op::DeleteService(request) => key(&request.owner, &request.name),
        Op::SetEndpoints(SetEndpointsRequest { owner, name, .. })
        | Op::PatchEndpoints(PatchEndpointsRequest { owner, name, .. })
        | Op::SetScheduler(SetSchedulerRequest { owner, name, .. }) => key(owner, name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(services: usize) -> Batch {
        let mut batch = Batch::default();
        for n in 0..services {
            let name = format!("s{n}");
            let service = vipd_client::v1::Service { name: name.clone(), ..Default::default() };
            let upsert = UpsertServiceRequest { service: Some(service), ..Default::default() };
            let set = SetEndpointsRequest { name, ..Default::default() };
            for op in [Op::UpsertService(upsert), Op::SetEndpoints(set)] {
                batch.push(format!("document {n}"), Operation { operation: Some(op) });
            }
        }
        batch
    }

    #[test]
    fn a_service_is_never_split_and_nothing_is_lost() {
        let parts = batch(10).split(7, usize::MAX);
        assert!(parts.iter().all(|part| part.len() <= 7 && part.len() % 2 == 0 && part.len() > 0));
        let services: Vec<String> = parts.iter().flat_map(Batch::services).collect();
        assert_eq!(services, (0..10).map(|n| format!("s{n}")).collect::<Vec<_>>());
        assert_eq!(parts[1].translate("operations[0].upsert_service").as_deref(), Some("document 3"));
    }

    #[test]
    fn bytes_count_too() {
        assert_eq!(batch(10).split(usize::MAX, 1).len(), 10);
        assert_eq!(batch(10).split(usize::MAX, usize::MAX).len(), 1);
    }
}
