/** Adding and removing hosts. */
import { request, type Answer } from './request'
import type { AddedHosts, HostOrigin, NewHost } from './types'

export function addHost(host: NewHost): Promise<Answer<AddedHosts>> {
  return request('post', '/api/v1/hosts', { body: host })
}

/** By id: two hosts may share a name. */
export function removeHost(id: string): Promise<Answer<{ name: string }>> {
  return request('delete', '/api/v1/hosts/{host}', { path: { host: id } })
}

export const listOrigins = (): Promise<Answer<{ hosts: HostOrigin[] }>> => request('get', '/api/v1/host-origins')
