import { expect, it } from 'vitest'

import { allocationText } from './allocationText'

const found = { scheduler: 'slurm', job: '4711_3', name: 'train', user: 'dan', account: null, partition: 'gpu', qos: null, is_suspended: false, since: 1_000, until: null, unknown: null }

it('names the job, whose it is, and that it is suspended', () => {
  expect(allocationText(found, 2_000)).toBe('job 4711_3 (dan), train')
  expect(allocationText({ ...found, name: null, is_suspended: true }, 2_000)).toBe('job 4711_3 (dan), suspended')
})

it('says why the job is not known', () => {
  expect(allocationText({ ...found, job: '', unknown: 'Slurm does not say which job' }, 2_000)).toBe('allocated by slurm: Slurm does not say which job')
})

it('shows no control characters', () => {
  expect(allocationText({ ...found, name: 'a\u202eb' }, 2_000)).not.toContain('\u202e')
})

it('names a pod by its namespace, and says who else shares the GPU', () => {
  const pod = { scheduler: 'kubernetes', job: 'vision/train-0', namespace: 'vision', pod: 'train-0', user: 'ada', shared_with: ['vision/notebook'] }
  expect(allocationText(pod, 2_000)).toBe('pod vision/train-0 (ada), shared with 1 other pod')
})

it('says that a process of another job is on it', () => {
  expect(allocationText({ scheduler: 'slurm', job: '7', conflict: 'Job 8 is on it.' }, 2_000)).toBe('job 7. Job 8 is on it.')
})
