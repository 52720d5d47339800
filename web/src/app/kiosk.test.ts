import { expect, test } from 'vitest'
import { FleetModel } from '../stream/fleetModel'
import { fleet, gpu, host } from '../testing/samples'
import { slidesOf } from './kiosk'

function model(...hosts: Parameters<typeof fleet>[0]): FleetModel {
  const made = new FleetModel()
  made.load(fleet(hosts))
  return made
}

test('the fleet comes first, then models, then labels that tell hosts apart', () => {
  const lab = model(host('a', [gpu(), gpu({ availability: 'unknown' })], { labels: { room: '1', rack: 'r' } }), host('b', [gpu({ availability: 'busy' })], { labels: { room: '2', rack: 'r' } }))
  const slides = slidesOf(lab, ['rack', 'room'])
  expect(slides.map(({ title }) => title)).toEqual(['All GPUs', 'By model', 'By room'])
  expect(slides[2]?.rows.map(({ name, gpus, counts }) => [name, gpus, counts.free, counts.unknown])).toEqual([['1', 2, 1, 1], ['2', 1, 0, 0]])
})

test('many groups are on several slides', () => {
  const lab = model(...Array.from({ length: 14 }, (_, at) => host(`h${at}`, [gpu()], { labels: { group: `g${at}` } })))
  expect(slidesOf(lab, ['group']).map(({ title, rows }) => [title, rows.length])).toEqual([['All GPUs', 0], ['By model', 1], ['By group, 1 of 3', 6], ['By group, 2 of 3', 6], ['By group, 3 of 3', 2]])
})

test('a fleet without hosts has one slide', () => {
  expect(slidesOf(new FleetModel(), [])).toEqual([{ title: 'All GPUs', rows: [] }])
})
