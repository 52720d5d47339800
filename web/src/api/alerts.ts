/** What is wrong: acknowledging it, and sending no notifications of it for a while. */
import { ask, type Answer } from './ask'
import type { components } from './schema'

type Schemas = components['schemas']

export type Alert = Schemas['Alert']
export type AlertCounts = Schemas['AlertCounts']
export type FailedAlert = Schemas['FailedAlert']
export type Mute = Schemas['Mute']
export type NewMute = Partial<Schemas['NewMute']> & { reason: string }

/** The most that one answer holds, and one request acknowledges. */
export const MOST_ALERTS = 1000

export const readAlerts = (signal?: AbortSignal): Promise<Answer<Schemas['AlertList']>> => ask(`api/v1/alerts?limit=${MOST_ALERTS}`, 'GET', undefined, undefined, signal)
export const acknowledge = (ids: readonly string[]): Promise<Answer<Schemas['AcknowledgedAlerts']>> => ask('api/v1/alerts/acknowledge', 'POST', { ids })
export const readMutes = (signal?: AbortSignal): Promise<Answer<Schemas['MuteList']>> => ask('api/v1/mutes', 'GET', undefined, undefined, signal)
export const createMute = (mute: NewMute): Promise<Answer<Mute>> => ask('api/v1/mutes', 'POST', mute)
export const endMute = (id: string): Promise<Answer<Mute>> => ask(`api/v1/mutes/${encodeURIComponent(id)}`, 'DELETE')
