package dynamo

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"example.com/conductor/redact"
)

// peerURL reads the body that names a peer. Any text will do.
func peerURL(r *exchange) (url string, err error) {
	err = r.decode("PeerRequest", required(stringMember("url", &url)))
	return url, err
}

// registerPeer adds a peer to the list, once: POST /register_peer.
func (d *Dialect) registerPeer(r *exchange) error {
	url, err := peerURL(r)
	if err != nil {
		return err
	}
	if err := d.replica.AddPeer(url); err != nil {
		return refusef(http.StatusBadRequest, "%v", err)
	}
	return ok(r.gin, http.StatusCreated)
}

// deregisterPeer takes a peer off the list: POST /deregister_peer.
func (d *Dialect) deregisterPeer(r *exchange) error {
	url, err := peerURL(r)
	if err != nil {
		return err
	}
	if !d.replica.RemovePeer(url) {
		return refusef(http.StatusNotFound, "peer not found")
	}
	return ok(r.gin, http.StatusOK)
}

// listPeers answers with the list, in the order of registration: GET /peers. With
// ?detail=1, which is ours, it also says how the recovery from them went.
func (d *Dialect) listPeers(g *gin.Context) {
	detail, readable := detailed(g)
	if !readable {
		return
	}
	peers := redact.URLs(d.replica.Peers())
	body := encode(peers)
	if detail {
		body = encode(gin.H{"peers": peers, "recovery": d.replica.Status()})
	}
	g.Data(http.StatusOK, "application/json", body)
}

// detailed reads the parameter detail; what it cannot be is answered with 400.
func detailed(g *gin.Context) (detail, readable bool) {
	switch g.Query("detail") {
	case "", "0", "false":
		return false, true
	case "1", "true":
		return true, true
	}
	plain(g, http.StatusBadRequest, "Failed to deserialize query string: detail: provided string was not `true` or `false`")
	return false, false
}
