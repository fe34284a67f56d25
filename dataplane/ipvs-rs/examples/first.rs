//! The example of the README: a service with two destinations, one of them drained and removed.

use ipvs_rs::{Batch, Destination, Error, Ipvs, Scheduler, Service, ServiceKey};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut ipvs = Ipvs::open()?;
    let web = ServiceKey::tcp("10.96.0.10:80".parse()?);
    let (one, two) = (Destination::new("10.1.1.2:8080".parse()?), Destination::new("10.1.2.2:8080".parse()?));

    // Many changes in one send. The kernel goes on behind a refused one; the report says which were refused and why.
    let mut batch = Batch::new();
    batch.add_service(&Service::new(web, Scheduler::WEIGHTED_LEAST_CONNECTION))?;
    batch.add_destination(&web, &one.with_weight(3))?;
    batch.add_destination(&web, &two)?;
    let report = ipvs.run(&batch)?;
    for refusal in &report.refusals {
        println!("request {}: {refusal}", refusal.index);
    }
    report.into_result()?;

    // One change a call. Weight 0: what is established stays, nothing new comes.
    ipvs.set_destination(&web, &two.with_weight(0))?;
    for entry in ipvs.destinations(&web)? {
        let (destination, connections) = (entry.destination, entry.connections);
        println!("{} weight {}, {} active", destination.key, destination.weight, connections.active);
    }
    ipvs.delete_destination(&web, &two.key)?;
    if let Err(Error::Refused(refusal)) = ipvs.delete_destination(&web, &two.key) {
        println!("{refusal}");
    }
    ipvs.delete_service(&web)?;
    Ok(())
}
