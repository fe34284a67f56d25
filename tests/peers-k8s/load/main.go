// load plays the cluster around a kube-proxy under measurement:
//
//	load node                                     registers node1
//	load write -from 0 -to 1000 -endpoints 5      services with their endpoints, straight into etcd
//	load change -what endpoint|service -by nft|legacy -count 20 -services 1000 -endpoints 5
//
// change runs in kube-proxy's own network namespace and prints, one a line, the milliseconds from the API server's answer
// to the kernel's commit. Addresses are those of tests/src/bench/scene.rs.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

var (
	ctx    = context.Background()
	server = flag.String("server", "https://127.0.0.1:6443", "the API server")
	etcd   = flag.String("etcd", "http://127.0.0.1:2379", "its etcd")
)

func main() {
	from := flag.Int("from", 0, "")
	to := flag.Int("to", 0, "")
	endpoints := flag.Int("endpoints", 5, "of each service")
	services := flag.Int("services", 0, "how many there are")
	count := flag.Int("count", 20, "changes")
	serial := flag.Int("serial", 0, "distinguishes the changes of this call from those of others")
	what := flag.String("what", "endpoint", "endpoint or service")
	by := flag.String("by", "nft", "how the kernel's commit is seen: nft or legacy")
	if len(os.Args) < 2 {
		fail(fmt.Errorf("node, write or change?"))
	}
	_ = flag.CommandLine.Parse(os.Args[2:])
	switch os.Args[1] {
	case "node":
		registerNode()
	case "write":
		write(*from, *to, *endpoints)
	case "change":
		change(*what, *by, *count, *serial, *services, *endpoints)
	}
}

func client() *kubernetes.Clientset {
	protobuf := rest.ContentConfig{ContentType: "application/vnd.kubernetes.protobuf", AcceptContentTypes: "application/vnd.kubernetes.protobuf"}
	return kubernetes.NewForConfigOrDie(&rest.Config{Host: *server, BearerToken: "bench", QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}, ContentConfig: protobuf})
}

func registerNode() {
	nodes := client().CoreV1().Nodes()
	node, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}, metav1.CreateOptions{})
	fail(err)
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "172.16.1.1"}}
	_, err = nodes.UpdateStatus(ctx, node, metav1.UpdateOptions{})
	fail(err)
}

// Service i is 10.100.0.0 + i + 1, its endpoints follow 10.64.0.0, what changes add is in 10.79.0.0/16 and 10.110.0.0/16.
func address(base [2]byte, n int) string {
	return fmt.Sprintf("%d.%d.%d.%d", base[0], int(base[1])+n>>16, n>>8&255, n&255)
}

var (
	virtual      = [2]byte{10, 100}
	backend      = [2]byte{10, 64}
	freshBackend = [2]byte{10, 79}
	freshVirtual = [2]byte{10, 110}
)

func service(name, ip string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: corev1.ServiceSpec{ClusterIP: ip, Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}}}
}

func endpoint(ip string) discoveryv1.Endpoint {
	yes, no := true, false
	return discoveryv1.Endpoint{Addresses: []string{ip}, Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no}}
}

func slice(service string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	name, port, tcp := "http", int32(8080), corev1.ProtocolTCP
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: service + "-a", Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &tcp}}, Endpoints: endpoints}
}

func declared(i, endpoints int) (*corev1.Service, *discoveryv1.EndpointSlice) {
	name := fmt.Sprintf("s%d", i)
	all := make([]discoveryv1.Endpoint, endpoints)
	for k := range all {
		all[k] = endpoint(address(backend, i*endpoints+k+1))
	}
	return service(name, address(virtual, i+1)), slice(name, all...)
}

// kube-proxy may hold a change back for its minSyncPeriod (1 s) after the sync before; that is not what is measured.
const pause = 1200 * time.Millisecond

// change makes one change after the other and prints how long the kernel took to hear of each.
func change(what, by string, count, serial, services, endpoints int) {
	api, kernel := client(), watch(by)
	for k := range count {
		mark := serial*count + k + 1
		var answered time.Time
		var sighted <-chan time.Time
		switch what {
		case "endpoint":
			fresh := address(freshBackend, mark)
			i := (k*services/count + serial*7 + 1) % services
			slices := api.DiscoveryV1().EndpointSlices("default")
			current, err := slices.Get(ctx, fmt.Sprintf("s%d-a", i), metav1.GetOptions{})
			fail(err)
			current.Endpoints = append(current.Endpoints, endpoint(fresh))
			sighted = kernel.next(fresh)
			_, err = slices.Update(ctx, current, metav1.UpdateOptions{})
			fail(err)
			answered = time.Now()
		default:
			fresh, name := address(freshVirtual, mark), fmt.Sprintf("fresh%d", mark)
			_, err := api.DiscoveryV1().EndpointSlices("default").Create(ctx, slice(name, endpoint(address(freshBackend, 4096+mark))), metav1.CreateOptions{})
			fail(err)
			// Endpoints without a service make it sync too, and hold the service back.
			time.Sleep(pause)
			sighted = kernel.next(fresh)
			_, err = api.CoreV1().Services("default").Create(ctx, service(name, fresh), metav1.CreateOptions{})
			fail(err)
			answered = time.Now()
		}
		select {
		case at := <-sighted:
			fmt.Printf("%.3f\n", max(0, at.Sub(answered).Seconds()*1e3))
		case <-time.After(120 * time.Second):
			fail(fmt.Errorf("change %d did not reach the kernel in two minutes", k))
		}
		time.Sleep(pause)
	}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
