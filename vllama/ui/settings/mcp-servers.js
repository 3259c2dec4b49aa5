/** The MCP servers that the chat of this browser may use. */

import { connectAll, listServers, storeServers } from "../chat/mcp.js";
import { plural } from "../format.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { View } from "../view.js";

class McpServers extends View {
  /** @type {McpState[] | null} */ states = null;

  async enter() {
    this.listen("tools", () => this.enter());
    this.states = await connectAll();
    this.update();
  }

  template() {
    const servers = listServers();
    /** @param {McpServer} server */
    const remove = (server) => storeServers(servers.filter(({ url }) => url !== server.url));
    return html`<section aria-labelledby="mcp-servers">
      <h2 id="mcp-servers">MCP servers</h2>
      <p class="muted">Their tools are offered to models in the chat, and you are asked before each call. The list and its tokens stay in this browser.</p>
      ${servers.length
        ? html`<table class="cards"><thead><tr><th scope="col">Name</th><th scope="col">URL</th><th scope="col">Tools</th><th scope="col"><span class="hidden">Actions</span></th></tr></thead>
            <tbody>${servers.map((server) => html`<tr>
              <th scope="row">${server.name}</th><td data-label="URL"><code>${server.url}</code></td><td data-label="Tools">${this.status(server)}</td>
              <td><button aria-label="Remove ${server.name}" @click=${() => remove(server)}>Remove</button></td></tr>`)}</tbody></table>`
        : nothing}
      <form class="key-form" aria-label="A new MCP server" @submit=${this.add}>
        <div class="fields">
          <label><span>Name</span><input name="name" required maxlength="60" autocomplete="off" /></label>
          <label><span>URL</span><input name="url" type="url" required pattern="https?:.+" autocomplete="off" /></label>
          <label><span>Token, if it needs one</span><input name="token" type="password" autocomplete="off" /></label>
        </div>
        <menu><button>Add the server</button></menu>
      </form>
    </section>`;
  }

  /** @param {McpServer} server */
  status({ url }) {
    const state = this.states?.find((one) => one.server.url === url);
    if (!state) return "Connecting …";
    return state.problem ? html`<span class="error" role="alert">${state.problem}</span>` : plural(state.tools.length, "tool");
  }

  /** @param {FormEvent} event */
  add(event) {
    event.preventDefault();
    const data = new FormData(event.target);
    const [name, url, token] = ["name", "url", "token"].map((field) => String(data.get(field)).trim());
    event.target.reset();
    storeServers([...listServers().filter((one) => one.url !== url), { name, url, token }]);
  }
}

customElements.define("mcp-servers", McpServers);
